"""Fully connected modules against torch's linear maps, with the same weights."""

import pytest
import torch

import descend
from descend.zoo import modules
from tests.zoo.lowered import agree, random


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_dense_module_is_a_linear_map_of_the_flattened_input(bias, transpose):
    dense = modules.FullyConnectedModule(5, bias=bias, transpose=transpose, activation=descend.Tanh, name="d")

    def twin(get, x):
        matrix = get("d_matrix").T if transpose else get("d_matrix")
        return torch.nn.functional.linear(x.flatten(1), matrix, get("d_bias") if bias else None).tanh()

    plan = agree(dense, twin, random(2, 3, 4))
    assert plan.weights["d_matrix"].shape == ((12, 5) if transpose else (5, 12))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_channelwise_dense_module_is_one_linear_map_for_every_channel(bias, transpose):
    dense = modules.ChannelwiseFullyConnectedModule([2, 3], bias, transpose, activation=descend.Tanh, name="d")

    def twin(get, x):
        matrix = get("d_matrix").T if transpose else get("d_matrix")
        y = torch.nn.functional.linear(x.flatten(2), matrix, get("d_bias") if bias else None)
        return y.unflatten(2, (2, 3)).tanh()

    agree(dense, twin, random(2, 4, 5))


def test_a_dense_module_has_a_bias_by_default_and_a_channelwise_one_has_none():
    assert [w.name for w in modules.FullyConnectedModule(3).weights] == ["fc1_matrix", "fc1_bias"]
    assert [w.name for w in modules.ChannelwiseFullyConnectedModule(3).weights] == ["channelwisefc1_matrix"]


def test_calls_share_the_weights():
    dense = modules.FullyConnectedModule(4, name="d")

    def twin(get, x):
        for _ in range(2):
            x = torch.nn.functional.linear(x, get("d_matrix"), get("d_bias"))
        return x

    agree(lambda x: dense(dense(x)), twin, random(3, 4))


def test_weights_that_are_given_are_used():
    matrix = descend.Weights(descend.ValueInitializer(values=range(6)), name="own")
    dense = modules.FullyConnectedModule(2, bias=False, weights=matrix)
    agree(dense, lambda get, x: x @ get("own").T, random(2, 3))


@pytest.mark.parametrize("module", [modules.FullyConnectedModule, modules.ChannelwiseFullyConnectedModule])
def test_layouts_and_strategies_reach_the_layer(module):
    layer = module(3, parallel_strategy={"height_groups": 2})(descend.Input())
    assert layer.parallel_strategy == descend.graph.ParallelStrategy(height_groups=2)
    assert modules.FullyConnectedModule(3, data_layout="model_parallel")(descend.Input()).data_layout == (
        "model_parallel"
    )
