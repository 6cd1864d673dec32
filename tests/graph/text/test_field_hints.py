"""Hints for fields that a message does not have, by the messages around it."""

import pytest

from descend.graph.text.field_hints import FieldHints
from descend.graph.text.schema import message_info


def hint(path, name, close="}", seen=()):
    """The hint for a field of the message at a path of field names below the first."""
    enclosing = [message_info(path[0])]
    for field in path[1:]:
        enclosing.append(enclosing[-1].fields[field].message)
    return FieldHints().unknown_field(name, enclosing, close, seen)


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        # A message around it has the field.
        (["LbannPB", "model", "layer", "relu"], "layer", "; Model has one: is a '}' missing before it?"),
        (["LbannPB", "model", "layer", "relu"], "model", "; LbannPB has one: is a '}' missing before it?"),
        # Older names of LBANN.
        (["Layer", "convolution"], "conv_dims", "; it is now kernel_size"),
        (["Layer", "convolution"], "conv_strides_i", "; it is now stride"),
        (["Layer", "deconvolution"], "conv_pads", "; it is now padding"),
        (["Layer", "deconvolution"], "num_output_channels", "; it is now out_channels"),
        (["Layer", "convolution"], "num_groups", "; it is now groups { value: ... }"),
        (["Layer", "input"], "io_buffer", "; it is gone: a trainer reads ahead by itself; take it out"),
        (
            ["Layer", "input"],
            "target_mode",
            "; it is gone: labels and responses are fields of their own; take it out and write data_field",
        ),
        # An operator that was a kind of layer.
        (
            ["Model", "layer"],
            "logical_not",
            "; it is an operator: write operator_layer { ops { parameters { "
            "[type.googleapis.com/lbann_data.LogicalNotOperator] {} } } }",
        ),
        # A message within this one has the field.
        (["Optimizer"], "momentum", "; sgd has one: write sgd { momentum ... }"),
        (["Optimizer"], "learn_rate", "; it belongs within one of adagrad, adam, rmsprop, sgd"),
        # Another part of the whole has it.
        (["LbannPB", "model"], "mini_batch_size", "; trainer has one"),
        # The nearest name, or all names.
        (["Layer", "input"], "data_feild", "; did you mean 'data_field'?"),
        (["Layer", "relu"], "zzz", "; it has no fields"),
        (["Layer", "fully_connected"], "zzz", None),
    ],
    ids=str,
)
def test_hints(path, name, expected):
    found = hint(path, name)
    if expected is None:
        fields = ", ".join(message_info("Layer.FullyConnected").fields)
        expected = f"; its fields are {fields}"
    assert found == expected


def test_the_bracket_that_is_missing_is_the_one_that_was_opened():
    assert hint(["Model", "layer"], "num_epochs", close=">") == "; Model has one: is a '>' missing before it?"


def test_a_message_that_stood_before_may_have_ended_too_early():
    assert hint(["Optimizer"], "momentum", seen={"sgd"}) == "; sgd has one: is there a '}' too many before it?"
    assert hint(["Optimizer"], "learn_rate", seen={"adam"}) == "; adam has one: is there a '}' too many before it?"


def test_a_list_of_more_than_six_messages_or_twelve_names_is_cut():
    found = hint(["Layer"], "num_dims")
    assert found.startswith("; it belongs within one of ")
    inside = found.removeprefix("; it belongs within one of ").split(", ")
    own = [name for name, one in message_info("Layer").fields.items() if one.kind == "message"]
    having = [
        name
        for name in own
        if not message_info("Layer").fields[name].wrapped
        and "num_dims" in message_info("Layer").fields[name].message.fields
    ]
    assert inside == (having if len(having) <= 6 else [*having[:6], "..."])
    names = list(message_info("Trainer").fields)
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    assert hint(["Trainer"], "qqqqqq") == f"; its fields are {shown}"


def test_the_same_mistake_has_the_same_hint_again():
    """It is worked out once; a message that has ended since then does not change it."""
    hints, enclosing = FieldHints(), [message_info("Optimizer")]
    first = hints.unknown_field("momentum", enclosing, "}", ())
    assert hints.unknown_field("momentum", enclosing, "}", {"sgd"}) == first
    assert hints.unknown_field("learn_rate", enclosing, "}", ()) != first
