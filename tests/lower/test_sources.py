"""Layers without parents."""

import pytest
import torch
from scipy import stats

import descend
from tests.lower.single import Single


def test_a_constant_is_the_same_everywhere():
    y = Single(lambda: descend.Constant(value=-2.5, num_neurons=[2, 3]))(samples=4)
    assert torch.equal(y, torch.full((4, 2, 3), -2.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("layer", "law"),
    [
        (lambda: descend.Gaussian(neuron_dims=[5]), stats.norm(0, 1)),
        (lambda: descend.Gaussian(mean=3, stdev=0.5, neuron_dims=[5]), stats.norm(3, 0.5)),
        (lambda: descend.Uniform(neuron_dims=[5]), stats.uniform(0, 1)),
        (lambda: descend.Uniform(min=-3, max=-1, neuron_dims=[5]), stats.uniform(-3, 2)),
    ],
)
def test_random_numbers_have_their_law(layer, law):
    single = Single(layer)
    y = single(samples=2000)
    assert stats.kstest(y.flatten(), law.cdf).pvalue > 1e-3
    assert y.unique().numel() == y.numel()
    assert not torch.isin(single(samples=2000, seed=1), y).any()
    assert torch.equal(single(samples=2000, training=False), y)  # random in evaluation too, without training_only


def test_a_deviation_of_zero_gives_the_mean():
    assert Single(lambda: descend.Gaussian(mean=3, neuron_dims=[2]))(samples=1).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize(
    ("layer", "value"),
    [
        (lambda: descend.Gaussian(mean=3, stdev=1, neuron_dims=[2], training_only=True), 3.0),
        (lambda: descend.Gaussian(neuron_dims=[2], training_only=True), 0.0),
        (lambda: descend.Uniform(min=-3, max=-1, neuron_dims=[2], training_only=True), -2.0),
        (lambda: descend.Uniform(neuron_dims=[2], training_only=True), 0.5),
        (lambda: descend.Bernoulli(prob=1, neuron_dims=[2]), 0.0),
    ],
)
def test_outside_training_some_are_constant(layer, value):
    assert Single(layer)(samples=1, training=False).tolist() == [[value, value]]
    assert Single(layer)(samples=1).tolist() != [[value, value]]


@pytest.mark.parametrize("prob", [0.0, 0.25, 1.0])
def test_bernoulli_is_one_with_its_probability(prob):
    y = Single(lambda: descend.Bernoulli(prob=prob, neuron_dims=[10]))(samples=1000)
    assert set(y.unique().tolist()) <= {0.0, 1.0}
    assert abs(y.mean() - prob) <= 4 * (prob * (1 - prob) / 1e4) ** 0.5


def test_layers_of_other_names_draw_other_numbers():
    a, b = (Single(lambda name=name: descend.Uniform(neuron_dims=[9], name=name))(samples=1) for name in "ab")
    assert not torch.isin(a, b).any()


def test_index_and_size_are_those_of_the_whole_mini_batch():
    assert Single(lambda: descend.MiniBatchIndex())(samples=3, position=4, batch_size=9).tolist() == [[4], [5], [6]]
    assert Single(lambda: descend.MiniBatchSize())(samples=2, position=4, batch_size=9).tolist() == [[9], [9]]


def test_weights_are_the_same_for_every_sample_and_gather_their_gradients():
    layer = Single(lambda: descend.WeightsLayer(dims=[2, 3], name="w"))
    assert list(layer.weights) == ["w_weights"]
    y = layer(samples=4)
    assert not y.any()
    (y * torch.arange(4.0, dtype=torch.float64).view(4, 1, 1)).sum().backward()
    assert torch.equal(layer.weights["w_weights"].grad, torch.full((2, 3), 6.0, dtype=torch.float64))
    listed = descend.Weights(descend.ValueInitializer(values=range(6)))
    assert Single(lambda: descend.WeightsLayer(dims=[2, 3], weights=listed))(samples=1).tolist() == [
        [[0, 1, 2], [3, 4, 5]]
    ]
