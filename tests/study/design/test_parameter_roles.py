"""Roles of weights."""

import pytest
from torch import nn

from descend.errors import ConfigurationError
from descend.study.design.parameter_roles import roles_of, split_roles, unmatched


def test_every_weight_has_one_role():
    module = nn.Sequential(
        nn.Embedding(5, 4), nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
    )
    assert roles_of(module) == {
        "0.weight": "embedding",
        "1.weight": "convolution",
        "1.bias": "bias",
        "2.weight": "norm",
        "2.bias": "norm",
        "3.weight": "matrix",
        "3.bias": "bias",
        "4.weight": "norm",
        "4.bias": "norm",
        "5.weight": "head",
        "5.bias": "bias",
    }


def test_a_single_layer_is_no_head():
    assert roles_of(nn.Linear(2, 2)) == {"weight": "matrix", "bias": "bias"}


def test_names_stand_for_roles():
    assert split_roles("vectors") == ("bias", "norm")
    assert split_roles("head+bias") == ("head", "bias")
    with pytest.raises(ConfigurationError, match="did you mean 'norm'"):
        split_roles("bias+nrom")


def test_a_role_that_no_trained_weight_has_is_named():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, bias=False))
    module[0].bias.requires_grad_(False)
    names = [
        "lr",
        "roles.norm.lr_mult",
        "roles.vectors.weight_decay",
        "roles.weights.lr_mult",
        "roles.head+norm.lr_mult",
    ]
    found = unmatched(names, module)
    assert [problem.split("'")[1] for problem in found] == ["roles.norm.lr_mult", "roles.vectors.weight_decay"]
    assert "are of the roles matrix, head" in found[0]
