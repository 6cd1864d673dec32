"""The names of LBANN's front end, and what its programs do with them."""

import os
import subprocess
import sys

import pytest
from google.protobuf import text_format

import descend
import descend.lbann as lbann
from descend.experiment.text import classes
from descend.graph import text
from descend.graph.text.schema import message_info

# Section b.1 of what LBANN's programs rely on.
PB2 = "callbacks datatype layers lbann metrics model objective_functions operators optimizers reader trainer "
PB2 += "training_algorithm weights transforms data_coordinator"


def test_every_message_has_its_class():
    envelope_names = {
        "Layer": lambda name: name,
        "Callback": lambda name: name,
        "Initializer": lambda name: name,
        "Optimizer": lambda name: name,
    }
    for envelope in envelope_names:
        info = message_info(envelope)
        for field in sorted(info.envelope - {"own_kind"}):
            name = info.fields[field].message.name.rpartition(".")[2]
            assert isinstance(getattr(lbann, name), type), name
    operators = [name for name in dir(lbann.operators_pb2) if name.endswith("Operator") and name != "Operator"]
    assert len(operators) == 75
    for operator in operators:
        name = operator.removesuffix("Operator")
        assert getattr(lbann.ops, name)
        assert getattr(lbann, name).__name__ == name
    names = "LayerMetric Model Trainer LTFB KFAC BatchedIterativeOptimizer RandomPairwiseExchange Weights Metric "
    names += "TruncationSelectionExchange RegularizedEvolution ObjectiveFunction LayerTerm L2WeightRegularization "
    names += "PythonMetric ExecutableMetric Callback Optimizer Initializer traverse_layer_graph run evaluate "
    names += "has_feature get_features lbann_exe Layer BaseMetric MutationStrategy"
    missing = [name for name in names.split() if name != "LayerMetric" and not hasattr(lbann, name)]
    assert missing == []


def test_callbacks_have_their_names_without_the_prefix_where_these_are_free():
    assert lbann.Print is lbann.CallbackPrint
    assert lbann.LTFB is not lbann.CallbackLTFB


def test_every_listed_name_can_be_fetched():
    assert [name for name in dir(lbann) if not hasattr(lbann, name)] == []


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="no attribute 'CallbackTimr'; did you mean 'CallbackTimer'"):
        _ = lbann.CallbackTimr


@pytest.mark.parametrize("file", PB2.split())
def test_modules_of_messages_hold_what_their_file_has(file):
    module = getattr(lbann, f"{file}_pb2")
    assert module.DESCRIPTOR.package == "lbann_data"
    for name in module.DESCRIPTOR.message_types_by_name:
        message = getattr(module, name)()
        assert message.DESCRIPTOR.full_name == f"lbann_data.{name}"


def test_enumerations_are_classes_of_integers():
    assert lbann.DataType.FLOAT == 1
    assert lbann.DeviceAllocation.GPU == 2
    assert lbann.SubGraphCommunication.COLL_OPT == 2
    assert lbann.ShardingStrategy.GRID_ROWS == 1
    assert lbann.ConvTensorOpsMode.NO_TENSOR_OPS == 1
    assert lbann.datatype_pb2.DOUBLE == lbann.datatype_pb2.DataType.DOUBLE == 2
    assert int(lbann.DataType.FP16) == lbann.layers_pb2.Layer(datatype=3).datatype


def test_texts_are_merged_by_protobuf_itself_packed_messages_included():
    readers = lbann.reader_pb2.DataReader()
    text_format.Merge('reader { name: "mnist" role: "train" transforms { scale { scale: 0.5 } } }', readers)
    assert readers.reader[0].transforms[0].scale.scale == 0.5
    model = lbann.model_pb2.Model()
    packed = "parameters { [type.googleapis.com/lbann_data.ClampOperator] { max: 2 } }"
    text_format.Merge(f'layer {{ name: "c" operator_layer {{ ops {{ {packed} }} }} }}', model)
    assert text.to_value(model, classes()).layers[0].ops[0] == descend.ops.Clamp(max=2.0)


def test_messages_are_the_same_with_protobuf_in_pure_python():
    code = """
from google.protobuf import text_format
from google.protobuf.internal import api_implementation
import descend.lbann as lbann
assert api_implementation.Type() == "python"
step = lbann.callbacks_pb2.Callback.MinibatchScheduleStep(epoch=2)
found = lbann.CallbackMinibatchSchedule(step=[step]).export_proto()
assert found.minibatch_schedule.step[0].epoch == 2
model = lbann.model_pb2.Model()
packed = "parameters { [type.googleapis.com/lbann_data.ClampOperator] { max: 2 } }"
text_format.Merge("layer { operator_layer { ops { %s } } }" % packed, model)
assert model.layer[0].operator_layer.ops[0].parameters.type_url.endswith("ClampOperator")
"""
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_namespace_is_light():
    """The driver is below it, and it is to start fast; a script needs no torch until it names a zoo or a GPU."""
    code = """
import sys
import descend.lbann as lbann
assert not {"torch", "numpy", "google.protobuf"} & sys.modules.keys()
x = lbann.Input(data_field="samples")
model = lbann.Model(1, [x], callbacks=[lbann.CallbackPrint()], metrics=lbann.Metric(lbann.L2Norm2(x)))
model.export_proto(), lbann.Trainer(3).export_proto(), lbann.Adam().export_proto(), lbann.has_feature("CNPY")
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
