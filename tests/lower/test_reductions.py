"""Reductions against NumPy."""

import numpy as np
import pytest
import torch

import descend
from descend.errors import Unsupported
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator
from tests.lower.single import Single, check_against, f64, gradients, random

AXES = (1, 2, 3)


def covariance(a, b, lost=1):
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return np.array([[np.cov(x, y, ddof=lost)[0, 1]] for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize(
    ("make", "expression", "inputs"),
    [
        (lambda s: descend.Reduction(s), lambda x: x.sum(AXES)[:, None], 1),
        (lambda s: descend.Reduction(s, mode="mean"), lambda x: x.mean(AXES)[:, None], 1),
        (lambda s: descend.Reduction(s, mode="average"), lambda x: x.mean(AXES)[:, None], 1),
        (lambda s: descend.MultiDimReduction(s, axes=[1]), lambda x: x.sum(2), 1),
        (lambda s: descend.MultiDimReduction(s, axes=[2, 0], mode="sum"), lambda x: x.sum((1, 3)), 1),
        (lambda s: descend.MultiDimReduction(s, axes=[0, 1, 2]), lambda x: x.sum(AXES)[:, None], 1),
        (lambda s: descend.MultiDimReduction(s, axes=[0, 2], mode="product"), lambda x: x.prod((1, 3)), 1),
        (lambda s: descend.MultiDimReduction(s, axes=[0, 2], mode="max"), lambda x: x.max((1, 3)), 1),
        (lambda s: descend.MultiDimReduction(s, axes=[1], mode="min"), lambda x: x.min(2), 1),
        (lambda s: descend.BatchwiseReduceSum(s), lambda x: np.broadcast_to(x.sum(0), x.shape), 1),
        (lambda s: descend.ChannelwiseMean(s), lambda x: x.mean((2, 3)), 1),
        (lambda s: descend.Variance(s), lambda x: covariance(x, x), 1),
        (lambda s: descend.Variance(s, biased=True), lambda x: covariance(x, x, 0), 1),
        (lambda a, b: descend.Covariance(a, b), covariance, 2),
        (lambda a, b: descend.Covariance(a, b, biased=True), lambda a, b: covariance(a, b, 0), 2),
    ],
)
def test_reductions_are_their_expressions(make, expression, inputs):
    check_against(make, expression, *[random(2, 2, 3, 2, seed=i) for i in range(inputs)])


def test_a_mean_of_channels_without_space_is_the_channel():
    check_against(lambda s: descend.ChannelwiseMean(s), lambda x: x, random(3, 4))


def test_equal_extremes_share_the_gradient():
    layer = Single(lambda s: descend.MultiDimReduction(s, axes=[0], mode="max"), (3,))
    (gradient,) = gradients(layer, f64([1.0, 1.0, 0.0]))
    assert gradient.tolist() == [[0.5, 0.5, 0.0]]


def test_a_variance_of_one_entry_is_zero_when_it_is_biased():
    check_against(lambda s: descend.Variance(s, biased=True), lambda x: 0 * x, random(2, 1))


def test_a_sum_over_a_part_of_the_mini_batch_is_refused():
    layer = Single(lambda s: descend.BatchwiseReduceSum(s, name="total"), (3,))
    with pytest.raises(Unsupported, match=r"layer 'total' .* sums over the whole mini-batch of 8 samples .* given 4"):
        layer(random(4, 3), batch_size=8)


def norms(matrix, first=False):
    """A model that reads the norms of a FullyConnected's rows, made before that layer or after it."""
    x = descend.Input(data_field="x", name="x")
    make = [
        lambda: descend.FullyConnected(x, num_neurons=2, weights=[matrix], name="fc"),
        lambda: descend.RowwiseWeightsNorms(weights=[matrix], name="norms"),
    ]
    layers = [build() for build in (reversed(make) if first else make)]
    total = descend.Sum(*layers, name="total")
    return descend.Model(1, objective_function=descend.Reduction(total, name="loss"))


@pytest.mark.parametrize("first", [False, True])
def test_norms_of_rows_of_another_layers_weights(first):
    matrix = descend.Weights(descend.ValueInitializer(values=[3, 0, 4, 0, 0, 0]), name="w")  # column by column
    module = lower(check(norms(matrix, first), {"x": (3,)}), lambda name: generator(1, name))
    value = module({"x": torch.zeros(2, 3)})["loss"]
    assert value.tolist() == [[5.0], [5.0]]
    value.sum().backward()
    np.testing.assert_allclose(module.get_parameter("w").grad, [[1.2, 1.6, 0], [0, 0, 0]], rtol=1e-6)
