"""Activations against torch's."""

import pytest
import torch
from torch.nn import functional

import descend
from descend.zoo import modules
from tests.zoo.lowered import agree, random

ALL = [
    (modules.Gelu, functional.gelu),
    (modules.Gelu_approx, lambda x: functional.gelu(x, approximate="tanh")),
    (modules.Silu, functional.silu),
]


@pytest.mark.parametrize(("ours", "theirs"), ALL, ids=lambda one: getattr(one, "__name__", ""))
def test_an_activation_is_torchs(ours, theirs):
    agree(ours, lambda _, x: theirs(x), 3 * random(4, 3, 2))


@pytest.mark.parametrize(("ours", "theirs"), ALL, ids=lambda one: getattr(one, "__name__", ""))
def test_a_module_takes_it(ours, theirs):
    module = modules.FullyConnectedModule(3, activation=ours, name="fc")
    agree(module, lambda get, x: theirs(x @ get("fc_matrix").T + get("fc_bias")), random(2, 5))
    assert module(descend.Input()).name == "fc_instance2_activation"


def test_of_a_layer_its_kind_counts():
    module = modules.FullyConnectedModule(3, activation=descend.Relu(), name="fc")
    agree(module, lambda get, x: torch.relu(x @ get("fc_matrix").T + get("fc_bias")), random(2, 5))
