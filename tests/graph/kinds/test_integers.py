"""Kinds that compute in a format of numbers: shapes, refusals and texts."""

import pytest

import descend
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, IntegerReduction, ToFormat
from tests.graph.kinds.given import refusal, shape_of


def test_shapes_are_those_of_what_comes_in():
    assert shape_of(ToFormat(format="int32"), (3, 2)) == (3, 2)
    assert shape_of(IntegerOperator(operation="divide"), (3, 2), (3, 2)) == (3, 2)
    assert shape_of(CheckedIndex(size=4), (3,)) == (3,)
    assert shape_of(IntegerConstant(values=[5], dims=[2, 3])) == (2, 3)
    assert shape_of(IntegerReduction(operation="sum", axes=[1]), (3, 2)) == (3,)
    assert shape_of(IntegerReduction(operation="sum", axes=[0, 1]), (3, 2)) == (1,)


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        (ToFormat(format="int31"), [(3,)], "has format 'int31'; expected one of int8"),
        (IntegerOperator(operation="add"), [(3,), (3,)], "has operation 'add'; expected one of divide"),
        (IntegerReduction(operation="max", axes=[0]), [(3,)], "has operation 'max'; expected one of sum"),
        (IntegerReduction(operation="sum", axes=[1]), [(3,)], "has axes 1"),
        (IntegerReduction(operation="sum"), [(3,)], "has axes"),
        (IntegerConstant(values=[1, 2], dims=[3]), [], "has 2 values; expected 1, or 3 for its dims"),
        (IntegerConstant(values=[1], dims=[]), [], "has dims nothing"),
        (IntegerConstant(values=[1], dims=[1], format="float"), [], "has format 'float'"),
        (CheckedIndex(), [(3,)], "has size 0; expected at least 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(layer, shapes, message):
    assert message in refusal(layer, *shapes)


def test_a_text_gives_the_same_layers():
    x = descend.Input(data_field="x", name="x")
    whole = ToFormat(x, format="int64", name="whole")
    three = IntegerConstant(values=[3, -(2**40)], dims=[2], name="three")
    ratio = IntegerOperator(whole, three, operation="divide", name="ratio")
    total = IntegerReduction(ratio, operation="sum", axes=[0], name="total")
    model = descend.Model(0, layers=[x, whole, three, ratio, total, CheckedIndex(total, size=5, name="index")])
    assert descend.graph.from_text(descend.graph.to_text(model)) == model
