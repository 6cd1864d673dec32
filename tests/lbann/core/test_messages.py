"""Classes from messages, against the table of LBANN's schema that is not ours, and Protobuf itself."""

import numpy as np
import pytest

import descend.lbann as lbann
from descend.errors import ConfigurationError
from descend.graph.text.schema import message_info
from descend.lbann.core.messages import FromMessage, message_class

INFO = message_info("Layer")
KINDS = sorted(INFO.envelope - {"own_kind"})


def value_of(field):
    """A value that is not zero, of a field's type, and what Protobuf then gives back."""
    if field.wrapped:
        return value_of(field.message.fields["value"])
    if field.kind == "message":
        return []
    if field.kind == "enum":
        return max(field.enum.values())
    value = {"string": "a b", "bool": True, "float": 0.5, "double": 0.25}.get(field.kind, 3)
    return [value, value] if field.repeated else value


@pytest.mark.parametrize("field", KINDS)
def test_every_field_of_every_layer_is_a_keyword_and_comes_back(field):
    kind = INFO.fields[field].message
    given = {name: value_of(one) for name, one in kind.fields.items()}
    layer = getattr(lbann, kind.name.rpartition(".")[2])(name="x", **given)
    found = getattr(layer.export_proto(), field)
    for name, value in given.items():
        got = getattr(found, name)
        if kind.fields[name].wrapped:
            got = got.value
        assert (list(got) if kind.fields[name].repeated else got) == value, name


@pytest.mark.parametrize("field", sorted(message_info("Callback").envelope))
def test_every_field_of_every_callback_is_a_keyword_and_comes_back(field):
    kind = message_info("Callback").fields[field].message
    given = {name: value_of(one) for name, one in kind.fields.items() if one.kind != "message"}
    callback = getattr(lbann, kind.name.rpartition(".")[2])(**given)
    found = getattr(callback.export_proto(), field)
    for name, value in given.items():
        got = getattr(found, name)
        assert (list(got) if kind.fields[name].repeated else got) == value, name


def test_a_keyword_that_is_no_field_is_a_value_error_with_the_nearest():
    with pytest.raises(ValueError, match=r"no field 'intervall'; did you mean 'interval'"):
        lbann.CallbackPrint(intervall=1)
    with pytest.raises(ValueError, match=r"no field 'num_neuron'; did you mean 'num_neurons'"):
        lbann.FullyConnected(num_neuron=3)
    with pytest.raises(ValueError, match="learning_rate"):
        lbann.SGD(learning_rate=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lbann.CallbackPrint(interval="often"),
        lambda: lbann.CallbackDumpOutputs(layers=["a", "b"]),  # lists are not joined
        lambda: lbann.FullyConnected(num_neurons="ten"),
        lambda: lbann.Reshape(dims=[1, "two"]),
        lambda: lbann.SGD(learn_rate="0.1"),
        lambda: lbann.Relu(3),
        lambda: lbann.Weights(initializer=3),
        lambda: lbann.LayerTerm(3),
        lambda: lbann.ObjectiveFunction([3]),
        lambda: lbann.Trainer("many"),
        lambda: lbann.Trainer(1, callbacks=[3]),
    ],
)
def test_a_value_of_a_wrong_type_is_a_type_error(make):
    with pytest.raises(TypeError) as raised:
        make()
    assert isinstance(raised.value, ConfigurationError)  # and one of ours, which programs of this package catch


def test_numbers_of_numpy_and_iterators_of_arrays_are_values():
    values = np.arange(6.0).reshape(2, 3)
    initializer = lbann.ValueInitializer(values=np.nditer(values, order="F"))
    found = initializer.export_proto().value_initializer.values
    assert list(found) == [0, 3, 1, 4, 2, 5]
    assert lbann.FullyConnected(num_neurons=np.int64(4)).export_proto().fully_connected.num_neurons == 4
    assert lbann.CallbackCheckMetric(lower_bound=np.float32(0.5)).export_proto().check_metric.lower_bound == 0.5
    assert lbann.Reshape(dims=7).export_proto().reshape.dims == [7]
    assert list(
        lbann.CallbackDropFixedLearningRate(drop_epoch=3).export_proto().drop_fixed_learning_rate.drop_epoch
    ) == [3]


def test_attributes_changed_later_are_written_and_checked():
    callback = lbann.CallbackPrint()
    assert callback.interval is None
    callback.interval = 5
    assert callback.export_proto().print.interval == 5
    callback.interval = "often"
    with pytest.raises(TypeError, match=r"CallbackPrint\.interval is 'often'"):
        callback.export_proto()


def test_inner_messages_are_given_as_objects_dictionaries_or_messages():
    inner = lbann.callbacks_pb2.Callback.MinibatchScheduleStep(epoch=2, mbsize=8)
    steps = [{"epoch": 1, "mbsize": 4}, inner, lbann.MinibatchScheduleStep(epoch=3, mbsize=16)]
    found = lbann.CallbackMinibatchSchedule(starting_mbsize=2, step=steps).export_proto()
    assert [(one.epoch, one.mbsize) for one in found.minibatch_schedule.step] == [(1, 4), (2, 8), (3, 16)]
    with pytest.raises(TypeError):
        lbann.CallbackMinibatchSchedule(step=[3])
    with pytest.raises(ConfigurationError):
        lbann.CallbackMinibatchSchedule(step=[lbann.weights_pb2.Weights()]).export_proto()


def test_a_map_and_an_enumeration_are_fields_like_others():
    made = message_class("RandomPairwiseExchange")(metric_name_strategy_map={"a": "HIGHER_IS_BETTER", "b": 0})
    assert made.to_fields()["metric_name_strategy_map"] == {"a": 1, "b": 0}
    assert isinstance(made, FromMessage)
    assert "HIGHER" in repr(made)
