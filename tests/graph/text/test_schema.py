"""The compiled schema against facts of LBANN's format, each typed in by hand."""

import importlib.util
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from descend.errors import ConfigurationError
from descend.graph import enums
from descend.graph.text import schema
from descend.graph.text.schema import message_info, pool

FACTS = [
    # message, field, number, type or message type, repeated, oneof
    ("LbannPB", "training_algorithm", 76, "TrainingAlgorithm", False, None),
    ("LbannPB", "data_set_metadata", 5, "DataSetMetaData", False, None),
    ("Reader", "enable_labels", 99108, "bool", False, None),
    ("Reader", "role", 3, "string", False, None),
    ("Reader", "data_local_filedir", 50, "string", False, None),
    ("Reader", "transforms", 600, "Transform", True, None),
    ("Reader", "gan_label_value", 202, "int32", False, None),
    ("DataSetMetaData.Schema", "independent", 97, "DataSetMetaData.Schema.JAGDataSlice", True, None),
    ("Transform", "pad", 118, "Transform.Pad", False, "transform_type"),
    ("Transform.Scale", "scale", 1, "float", False, None),
    ("Callback", "init", 42, "Callback.CallbackCheckInit", False, "callback_type"),
    ("Callback", "set_learning_rate", 55, "Callback.CallbackSetLearningRate", False, "callback_type"),
    ("Callback.CallbackSummary", "batch_interval", 2, "int64", False, None),
    ("Callback.CallbackMinibatchSchedule", "step", 2, "Callback.MinibatchScheduleStep", True, None),
    ("Callback.CallbackCheckpoint", "restart_dir", 8, "string", False, None),
    ("Operator", "parameters", 4, "google.protobuf.Any", False, None),
    ("SelectOperator", "epsilon", 6, "double", False, None),
    ("Layer", "grid_tag", 13, "google.protobuf.Int64Value", False, None),
    ("Layer", "freeze", 401, "bool", False, None),
    ("Layer", "external", 314, "Layer.External", False, "layer_type"),
    ("Layer", "permute", 77, "Layer.TensorPermute", False, "layer_type"),
    ("Layer.Convolution", "conv_tensor_op_mode", 14, "ConvTensorOpsMode", False, None),
    ("Layer.Deconvolution", "conv_tensor_op_mode", 10, "ConvTensorOpsMode", False, None),
    ("Layer.Convolution", "has_bias", 8, "google.protobuf.BoolValue", False, None),
    ("Layer.LayerNorm", "epsilon", 1, "google.protobuf.DoubleValue", False, None),
    ("Layer.Crop", "dims", 3, "int64", True, None),
    ("Layer.MultiDimReduction", "axes", 2, "uint32", True, None),
    ("ParallelStrategy", "grid_tag", 21, "google.protobuf.Int64Value", False, None),
    ("Metric", "layer_metric", 11, "Metric.LayerMetric", False, "metric_type"),
    ("ObjectiveFunction.L2WeightRegularization", "weights", 2, "string", True, None),
    ("Optimizer.SGD", "nesterov", 4, "bool", False, None),
    ("Optimizer.Adam", "adamw_weight_decay", 9, "double", False, None),
    ("Weights", "sharding_strategy", 6, "ShardingStrategy", False, None),
    ("Initializer.ValueInitializer", "values_d", 2, "double", True, None),
    ("Model", "callback", 20, "Callback", True, None),
    ("Model", "evaluation_frequency", 54, "int64", False, None),
    ("TrainingAlgorithm", "parameters", 2, "google.protobuf.Any", False, None),
    ("SGD", "suppress_timer_output", 489, "bool", False, None),
    ("SGD.TerminationCriteria", "max_seconds", 3, "double", False, "criterion"),
    ("KFAC", "kfac_use_interval", 21, "string", False, None),
    ("DataCoordinator", "transforms", 600, "TransformDataField", True, None),
    ("Trainer", "mini_batch_size", 12, "int64", False, None),
    ("Trainer", "serialize_io", 101, "bool", False, None),
]


@pytest.mark.parametrize(
    ("message", "field", "number", "kind", "repeated", "oneof"), FACTS, ids=lambda value: str(value)
)
def test_a_field_is_as_the_format_has_it(message, field, number, kind, repeated, oneof):
    found = message_info(message).fields[field]
    descriptor = found.descriptor
    names = {
        value: name.removeprefix("TYPE_").lower()
        for name, value in vars(FieldDescriptor).items()
        if name.startswith("TYPE_")
    }
    made_of = descriptor.message_type or descriptor.enum_type
    assert descriptor.number == number
    assert (made_of.full_name.removeprefix("lbann_data.") if made_of else names[descriptor.type]) == kind
    assert found.repeated is repeated
    assert found.oneof == oneof


def test_the_counts_of_the_reference():
    assert len(message_info("Layer").envelope - {"own_kind"}) == 82
    assert len(message_info("Callback").envelope - {"minibatch_ramp"}) == 58
    operators = [name for name in pool().FindFileByName("operators.proto").message_types_by_name if name != "Operator"]
    assert len(operators) == 75


def test_a_map_of_metric_strategies():
    field = message_info("RandomPairwiseExchange").fields["metric_name_strategy_map"]
    assert field.is_map
    assert field.message.fields["value"].enum == {"LOWER_IS_BETTER": 0, "HIGHER_IS_BETTER": 1}


def test_our_own_stopping_has_a_number_that_is_not_lbanns():
    assert message_info("SGD.TerminationCriteria").fields["any_of"].descriptor.number == 10000


def test_our_own_kinds_and_rules_have_numbers_that_are_not_lbanns():
    assert message_info("Layer").fields["own_kind"].descriptor.number == 10000
    assert message_info("ObjectiveFunction.L2WeightRegularization").fields["exclude"].descriptor.number == 10000


@pytest.mark.parametrize(
    "enum",
    [
        enums.ConvTensorOpsMode,
        enums.DataType,
        enums.DeviceAllocation,
        enums.ShardingStrategy,
        enums.SubGraphCommunication,
    ],
)
def test_python_enumerations_have_the_schemas_numbers(enum):
    found = pool().FindEnumTypeByName(f"lbann_data.{enum.__name__}")
    assert {value.name: value.number for value in found.values} == {member.name: member.value for member in enum}


def test_a_missing_schema_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "SCHEMA", tmp_path / "schema.binpb")
    with pytest.raises(ConfigurationError, match=r"python hatch_build\.py"):
        schema.pool.__wrapped__()


def test_the_build_hook_compiles_the_same_schema(tmp_path):
    root = Path(schema.__file__).parents[3]
    spec = importlib.util.spec_from_file_location("hatch_build", root / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    for source in schema.SCHEMA.parent.glob("*.proto"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    assert hook.compile_schema(tmp_path).read_bytes() == schema.SCHEMA.read_bytes()
