"""Operators as descriptions: how many inputs each takes, its fields in the format, and what it refuses."""

import dataclasses
import itertools

import pytest

from descend.errors import ConfigurationError
from descend.graph import DataType, ops
from descend.graph.text.schema import message_info

CLASSES = [getattr(ops, name) for name in ops.__all__ if name != "Operator"]


def fields_of(operator):
    return {field.name for field in dataclasses.fields(operator)}


BASE = fields_of(ops.Operator)
TWO = {
    ops.Add,
    ops.Subtract,
    ops.Multiply,
    ops.Divide,
    ops.Mod,
    ops.Pow,
    ops.SafeDivide,
    ops.SquaredDifference,
    ops.Max,
    ops.Min,
    ops.Equal,
    ops.NotEqual,
    ops.Less,
    ops.LessEqual,
    ops.Greater,
    ops.GreaterEqual,
    ops.LogicalAnd,
    ops.LogicalOr,
    ops.LogicalXor,
    ops.BinaryCrossEntropy,
    ops.SigmoidBinaryCrossEntropy,
    ops.BooleanAccuracy,
    ops.BooleanFalseNegative,
    ops.BooleanFalsePositive,
}


@pytest.mark.parametrize("operator", CLASSES)
def test_the_number_of_inputs_is_that_of_the_function(operator):
    expected = 3 if operator is ops.Select else 2 if operator in TWO else 1
    assert operator().count_inputs() == expected


@pytest.mark.parametrize("operator", CLASSES)
def test_the_fields_are_those_of_the_message_of_its_name(operator):
    """input_datatype, output_datatype and device stand in the envelope around it, which all operators share."""
    assert operator.message == f"{operator.__name__}Operator"
    assert fields_of(operator) - BASE == set(message_info(operator.message).fields)
    assert set(message_info("Operator").fields) == {*BASE, "parameters"}


@pytest.mark.parametrize("true", [False, True])
@pytest.mark.parametrize("false", [False, True])
def test_a_branch_that_is_a_constant_takes_no_input(true, false):
    select = ops.Select(constant_if_true=true, constant_if_false=false, value_if_true=3.0)
    assert select.count_inputs() == 1 + (not true) + (not false)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 0), (-2.5, -2), (-float("inf"), 0), (0, float("inf"))])
def test_bounds_with_numbers_between_them_are_taken(low, high):
    assert list(ops.Clamp(min=low, max=high).problems()) == []


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 0), (2, 2), (float("nan"), 1), (0, float("nan"))])
def test_bounds_with_nothing_between_them_are_refused(low, high):
    assert list(ops.Clamp(min=low, max=high).problems()) == [
        f"has min {float(low)!r} and max {float(high)!r}; max must be above min (0 and 1 are usual)"
    ]


def test_a_negative_width_is_refused_and_an_unset_one_is_not():
    assert list(ops.Select().problems()) == []
    assert list(ops.Select(epsilon=1e-9).problems()) == []
    assert list(ops.Select(epsilon=-1e-9).problems()) == ["has epsilon -1e-09; it must be above 0 (unset means 1e-5)"]


def test_each_complex_format_is_refused_and_the_real_ones_are_not():
    real = [DataType.DEFAULT_DATATYPE, DataType.FLOAT, DataType.DOUBLE, DataType.FP16]
    for one, other in itertools.product(real, real):
        assert list(ops.Abs(input_datatype=one, output_datatype=other).format_problems()) == []
    found = ops.Abs(input_datatype="COMPLEX_FLOAT", output_datatype="COMPLEX_DOUBLE").format_problems()
    assert list(found) == [
        "has input_datatype COMPLEX_FLOAT, which is not supported: expected FLOAT, DOUBLE or FP16",
        "has output_datatype COMPLEX_DOUBLE, which is not supported: expected FLOAT, DOUBLE or FP16",
    ]


def test_operators_are_values():
    assert ops.Scale(constant=2) == ops.Scale(constant=2.0)
    assert ops.Scale(constant=2) != ops.AddConstant(constant=2)
    assert len({ops.Scale(constant=2), ops.Scale(constant=2, where="f:1:1"), ops.Scale(constant=3)}) == 2
    with pytest.raises(ConfigurationError, match="Scale has no field 'konstant'; did you mean 'constant'"):
        ops.Scale(konstant=2)
