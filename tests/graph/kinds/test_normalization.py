"""Normalization as kinds of layers: weights as torch's modules have them, defaults of LBANN, and refusals."""

import inspect

import pytest
import torch

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of, slots_of


@pytest.mark.parametrize(
    "layer",
    [
        g.BatchNormalization(),
        g.EntrywiseBatchNormalization(),
        g.LayerNorm(),
        g.InstanceNorm(),
        g.LocalResponseNormalization(window_width=5, lrn_k=2),
        g.LocalResponseNormalization(window_width=5, lrn_alpha=1e-4),
    ],
    ids=kind,
)
def test_the_output_has_the_shape_of_the_input(layer):
    assert shape_of(layer, (3, 4)) == (3, 4)
    assert shape_of(layer, (3,)) == (3,)


def starts(slots):
    return {suffix: (slot.shape, slot.initializer.value, slot.trainable) for suffix, slot in slots.items()}


def test_batch_normalization_has_the_weights_of_torchs():
    twin = torch.nn.BatchNorm1d(3)
    names = {"scale": twin.weight, "bias": twin.bias}
    names |= {"running_mean": twin.running_mean, "running_variance": twin.running_var}
    found = starts(slots_of(g.BatchNormalization(), (3, 4, 5)))
    assert list(found) == list(names)
    for name, tensor in names.items():
        assert found[name] == (tuple(tensor.shape), tensor[0].item(), isinstance(tensor, torch.nn.Parameter))


def test_entrywise_batch_normalization_has_running_values_for_each_entry_alone():
    assert starts(slots_of(g.EntrywiseBatchNormalization(), (3, 4))) == {
        "running_mean": ((3, 4), 0.0, False),
        "running_variance": ((3, 4), 1.0, False),
    }


@pytest.mark.parametrize(("start_dim", "normalized"), [(0, (3, 4, 5)), (1, (4, 5)), (-1, (5,)), (-3, (3, 4, 5))])
def test_a_layer_norm_has_scale_and_bias_of_the_normalized_dimensions(start_dim, normalized):
    twin = torch.nn.LayerNorm(normalized)
    layer = g.LayerNorm(start_dim=start_dim, scale=True, bias=True)
    assert layer.normalized((3, 4, 5)) == normalized
    assert starts(slots_of(layer, (3, 4, 5))) == {
        "scale": (tuple(twin.weight.shape), 1.0, True),
        "bias": (tuple(twin.bias.shape), 0.0, True),
    }


def test_scale_and_bias_of_a_layer_norm_come_when_they_are_asked_for():
    assert list(slots_of(g.LayerNorm(), (3,))) == []
    assert list(slots_of(g.LayerNorm(scale=True), (3,))) == ["scale"]
    assert list(slots_of(g.LayerNorm(bias=True), (3,))) == ["bias"]


@pytest.mark.parametrize(
    ("layer", "twin"),
    [
        (g.BatchNormalization, torch.nn.BatchNorm2d),
        (g.LayerNorm, torch.nn.LayerNorm),
        (g.InstanceNorm, torch.nn.InstanceNorm2d),
    ],
)
def test_an_unset_epsilon_is_torchs(layer, twin):
    assert layer().setting("epsilon") == inspect.signature(twin).parameters["eps"].default


def test_an_epsilon_of_zero_counts_where_the_format_knows_unset_from_zero():
    """LayerNorm and InstanceNorm wrap the number in a message; BatchNormalization has a plain one."""
    assert g.LayerNorm(epsilon=0.0).setting("epsilon") == 0.0
    assert g.InstanceNorm(epsilon=0.0).setting("epsilon") == 0.0
    assert g.BatchNormalization(epsilon=0.0).setting("epsilon") == 1e-5


def test_the_decay_is_a_share_that_is_kept():
    """torch's momentum, 0.1, is the share that is replaced."""
    assert g.BatchNormalization().setting("decay") == 1 - torch.nn.BatchNorm1d(1).momentum
    for decay in (0.5, 1):
        assert shape_of(g.BatchNormalization(decay=decay), (3,)) == (3,)
    for decay in (-0.1, 1.1, float("nan")):
        assert refusal(g.BatchNormalization(decay=decay), (3,)) == f"has decay {decay}; expected 0 to 1 (0.9 is usual)"
    assert "has epsilon nan" in refusal(g.BatchNormalization(epsilon=float("nan")), (3,))


def test_initial_values_that_mean_the_usual_ones_are_taken():
    for fields in ({"scale_init": 1.0}, {"scale_init": 0.0}, {"bias_init": 0.0}):
        assert shape_of(g.BatchNormalization(**fields), (3,)) == (3,)


@pytest.mark.parametrize("layer", [g.BatchNormalization, g.EntrywiseBatchNormalization, g.LayerNorm])
def test_the_rule_norm_means_the_weights_of_these(layer):
    assert layer.normalizes
    assert not g.FullyConnected.normalizes


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.BatchNormalization(decay=1.5), [(3, 4)], "has decay 1.5; expected 0 to 1"),
        (g.BatchNormalization(epsilon=-1), [(3, 4)], "has epsilon -1.0; expected at least 0"),
        (
            g.BatchNormalization(scale_init=2),
            [(3, 4)],
            "has scale_init or bias_init, which LBANN reads and does not use",
        ),
        (g.BatchNormalization(bias_init=1), [(3, 4)], "has scale_init or bias_init"),
        (g.EntrywiseBatchNormalization(decay=-1), [(3, 4)], "has decay -1.0"),
        (g.LayerNorm(start_dim=2), [(3, 4)], "has start_dim 2, and 'p0' gives 3 x 4: expected -2 to 1"),
        (g.LayerNorm(start_dim=-3), [(3, 4)], "has start_dim -3"),
        (g.LayerNorm(epsilon=-1), [(3, 4)], "has epsilon -1.0"),
        (g.InstanceNorm(epsilon=-1), [(3, 4)], "has epsilon -1.0"),
        (g.LocalResponseNormalization(), [(3, 4)], "has window_width 0; it must be at least 1"),
        (
            g.LocalResponseNormalization(window_width=5),
            [(3, 4)],
            "has lrn_k 0 and lrn_alpha 0, so it would divide 3 x 4 by 0",
        ),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
