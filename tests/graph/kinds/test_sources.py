"""Layers without parents: shapes from their own fields, the rule for zeros, and what they refuse."""

import math

import pytest

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of

SIZED = [
    (g.Constant, "num_neurons"),
    (g.Gaussian, "neuron_dims"),
    (g.Bernoulli, "neuron_dims"),
    (g.Uniform, "neuron_dims"),
    (g.WeightsLayer, "dims"),
]


@pytest.mark.parametrize(("source", "field"), SIZED)
def test_the_field_is_the_shape(source, field):
    assert shape_of(source(**{field: [2, 3]})) == (2, 3)
    assert shape_of(source(**{field: 4})) == (4,)
    assert source.num_parents == 0


@pytest.mark.parametrize("dims", [[], [0], [2, -1]])
@pytest.mark.parametrize(("source", "field"), SIZED)
def test_a_shape_without_entries_is_refused_by_the_name_of_the_field(source, field, dims):
    shown = " x ".join(map(str, dims)) or "nothing"
    assert refusal(source(**{field: dims})) == f"has {field} {shown}; expected one or more sizes of at least 1"


@pytest.mark.parametrize("source", [g.MiniBatchIndex, g.MiniBatchSize])
def test_place_and_size_in_the_mini_batch_are_one_number(source):
    assert shape_of(source()) == (1,)
    assert source.num_parents == 0


@pytest.mark.parametrize(
    ("mean", "stdev", "moments"), [(0, 0, (0, 1)), (3, 0, (3, 0)), (0, 2, (0, 2)), (-3, 0.5, (-3, 0.5))]
)
def test_a_normal_distribution_of_two_zeros_is_the_standard_one(mean, stdev, moments):
    assert g.Gaussian(mean=mean, stdev=stdev).moments() == moments


@pytest.mark.parametrize(("low", "high", "bounds"), [(0, 0, (0, 1)), (2, 2, (2, 2)), (-1, 0, (-1, 0)), (0, 3, (0, 3))])
def test_a_uniform_distribution_of_two_zeros_is_from_0_to_1(low, high, bounds):
    assert g.Uniform(min=low, max=high, neuron_dims=[1]).bounds() == bounds
    assert shape_of(g.Uniform(min=low, max=high, neuron_dims=[1])) == (1,)


@pytest.mark.parametrize(
    "layer",
    [
        g.Gaussian(stdev=math.inf, neuron_dims=[1]),
        g.Gaussian(stdev=math.nan, neuron_dims=[1]),
        g.Uniform(min=math.nan, neuron_dims=[1]),
        g.Uniform(max=math.inf, neuron_dims=[1]),
        g.Uniform(min=-1.7e308, max=1.7e308, neuron_dims=[1]),  # each is finite, and their distance is not
        g.Bernoulli(prob=math.nan, neuron_dims=[1]),
        g.Bernoulli(prob=-0.1, neuron_dims=[1]),
    ],
    ids=kind,
)
def test_laws_that_are_none_are_refused(layer):
    assert "; expected" in refusal(layer)


@pytest.mark.parametrize("prob", [0, 1])
def test_a_sure_event_is_a_law(prob):
    assert shape_of(g.Bernoulli(prob=prob, neuron_dims=[2])) == (2,)


def test_a_layer_of_weights_has_one_tensor_that_starts_at_zero_and_is_trained():
    (slot,) = g.WeightsLayer(dims=[2, 3]).weight_slots(())
    assert (slot.suffix, slot.shape, slot.initializer, slot.trainable, slot.column_major) == (
        "weights",
        (2, 3),
        g.ConstantInitializer(0.0),
        True,
        False,
    )


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.Constant(), [], "has num_neurons nothing; expected one or more sizes of at least 1"),
        (g.Constant(num_neurons=[2, 0]), [], "has num_neurons 2 x 0"),
        (g.Gaussian(), [], "has neuron_dims nothing"),
        (g.Gaussian(stdev=-1, neuron_dims=[1]), [], "has stdev -1.0; expected a finite number of at least 0"),
        (g.Uniform(min=2, max=1, neuron_dims=[1]), [], "has min 2.0 and max 1.0"),
        (g.Uniform(), [], "has neuron_dims nothing"),
        (g.Bernoulli(prob=1.5, neuron_dims=[1]), [], "has prob 1.5; expected 0 to 1"),
        (g.Bernoulli(), [], "has neuron_dims nothing"),
        (g.WeightsLayer(), [], "has dims nothing"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
