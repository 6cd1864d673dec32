"""Weights and initializers as values: names, fields of the text, and the rules for zeros."""

import numpy as np
import pytest

import descend.graph as g
from descend.errors import ConfigurationError
from descend.graph.weights import ArrayInitializer


def test_names_count_up_before_they_are_given(monkeypatch):
    monkeypatch.setattr(g.Weights, "global_count", 0)
    assert [g.Weights().name, g.Weights(name="own").name, g.Weights().name] == ["weights1", "own", "weights2"]


def test_weights_of_a_text_without_a_name_are_left_to_the_model(monkeypatch):
    monkeypatch.setattr(g.Weights, "global_count", 0)
    assert g.Weights.from_fields({"where": "f:1:1"}).name == ""
    assert g.Weights.from_fields({"where": "f:1:1"}).where == "f:1:1"
    assert g.Weights.global_count == 0


def test_fields_are_those_that_were_given():
    start, rule = g.HeNormalInitializer(), g.SGD(0.1)
    own = g.Weights(start, rule, "w", datatype="FP16", sharded=True, sharding_strategy="GRID_ROWS")
    fields = {
        "name": "w",
        "initializer": start,
        "optimizer": rule,
        "datatype": g.DataType.FP16,
        "sharded": True,
        "sharding_strategy": g.ShardingStrategy.GRID_ROWS,
    }
    assert own.to_fields() == fields
    assert g.Weights.from_fields(fields).to_fields() == fields
    assert repr(own) == "Weights('w')"


@pytest.mark.parametrize("field", ["datatype", "sharded", "sharding_strategy"])
def test_a_zero_of_the_text_is_an_unset_field(field):
    assert g.Weights(**{field: 0}).to_fields()[field] is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"optimizer": 0.1}, "Weights.optimizer is 0.1; expected Optimizer or None"),
        ({"initializer": "he"}, "Weights.initializer is 'he'; expected Initializer or None"),
        ({"initializer": g.HeNormalInitializer}, "expected Initializer or None"),
        (
            {"datatype": "HALF"},
            "Weights.datatype is 'HALF'; expected one of DEFAULT_DATATYPE, FLOAT, DOUBLE, FP16, COMPLEX_FLOAT, "
            "COMPLEX_DOUBLE or None",
        ),
        ({"sharded": "yes"}, "Weights.sharded is 'yes'; expected True or False or None"),
        ({"initialiser": None}, "Weights has no field 'initialiser'; did you mean 'initializer'?"),
    ],
    ids=str,
)
def test_wrong_fields_are_refused_by_name(fields, problem):
    with pytest.raises(ConfigurationError) as caught:
        g.Weights(**fields)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("start", "numbers"),
    [
        (g.UniformInitializer(), (0, 1)),
        (g.UniformInitializer(-1, 0), (-1, 0)),
        (g.UniformInitializer(2, 2), (2, 2)),
        (g.NormalInitializer(), (0, 1)),
        (g.NormalInitializer(3, 0), (3, 0)),
        (g.NormalInitializer(0, 2), (0, 2)),
    ],
    ids=repr,
)
def test_a_law_of_two_zeros_is_the_standard_one(start, numbers):
    assert (start.bounds if isinstance(start, g.UniformInitializer) else start.moments) == numbers


def test_listed_values_are_those_that_are_given():
    assert g.ValueInitializer([1, 2]).listed == (1.0, 2.0)
    assert g.ValueInitializer(values_d=[1, 2]).listed == (1.0, 2.0)
    assert g.ValueInitializer().listed == ()


@pytest.mark.parametrize(("dtype", "field"), [(np.float32, "values"), (np.float64, "values_d")])
@pytest.mark.parametrize(("column_major", "values"), [(False, (0, 1, 2, 3, 4, 5)), (True, (0, 3, 1, 4, 2, 5))])
def test_an_array_is_listed_in_the_order_of_its_weights(dtype, field, column_major, values):
    """In column-major order for the matrices that listed values fill column by column; NumPy calls it F."""
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    assert ArrayInitializer(array, column_major).to_fields() == {field: values}


def test_arrays_are_equal_by_shape_and_entries():
    array = np.arange(6.0).reshape(2, 3)
    one = ArrayInitializer(array)
    assert one == ArrayInitializer(array.copy())
    assert hash(one) == hash(ArrayInitializer(array.copy()))
    assert one != ArrayInitializer(array.reshape(3, 2))
    assert one != ArrayInitializer(array + 1)
    assert one != g.ValueInitializer(values_d=range(6))
    assert repr(one) == "ArrayInitializer(float64 (2, 3))"


def test_an_array_that_differs_in_one_entry_differs():
    array = np.zeros((2, 3), np.float32)
    other = array.copy()
    other[1, 2] = 1
    assert ArrayInitializer(array) != ArrayInitializer(other)


@pytest.mark.parametrize("column_major", [False, True])
def test_an_array_survives_the_text(column_major):
    array = np.random.default_rng(0).normal(size=(2, 3))
    own = g.Weights(ArrayInitializer(array, column_major), name="w")
    fc = g.FullyConnected(g.Input(data_field="x"), num_neurons=2, weights=own)
    model = g.Model(1, objective_function=g.L2Norm2(fc))
    (read,) = g.from_text(g.to_text(model)).weights
    assert np.array_equal(np.reshape(read.initializer.listed, (2, 3), order="F" if column_major else "C"), array)
