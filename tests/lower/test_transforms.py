"""Layers that join, cut and pass on, against NumPy."""

import pytest
import torch

import descend
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator
from tests.lower.single import Single, check_against, gradients, random


@pytest.mark.parametrize(
    ("make", "expression", "inputs"),
    [
        (lambda a, b, c: descend.Hadamard(a, b, c), lambda a, b, c: a * b * c, 3),
        (lambda a: descend.Hadamard(a), lambda a: a, 1),
        (lambda a, b: descend.WeightedSum(a, b, scaling_factors=[2, -0.5]), lambda a, b: 2 * a - 0.5 * b, 2),
        (lambda a, b: descend.Cross_Grid_Sum(a, b), lambda a, b: a + b, 2),
        (lambda a, b: descend.Cross_Grid_Sum_Slice(a, b), lambda a, b: a + b, 2),
        (lambda a: descend.IdentityZero(a), lambda a: a, 1),
        (lambda a: descend.Slice(a, slice_points=[1, 3]), lambda a: a[:, 1:3], 1),
        (lambda a: descend.Slice(a, axis=1, slice_points=[0, 2]), lambda a: a[:, :, 0:2], 1),
    ],
)
def test_transforms_are_their_expressions(make, expression, inputs):
    check_against(make, expression, *[random(2, 4, 3, seed=i) for i in range(inputs)])


def pieces(source_of, take, fields):
    """The outputs of a layer with several children, weighted so that each piece is distinguished from the others."""
    source = source_of(*[descend.Input(data_field=name, name=name) for name in fields])
    children = [descend.Identity(source, name=f"piece{i}") for i in range(take)]
    sums = [descend.Reduction(child) for child in children]
    total = descend.WeightedSum(*sums, scaling_factors=[10.0**i for i in range(take)], name="total")
    model = descend.Model(1, objective_function=total)
    plan = check(model, {name: tuple(x.shape[1:]) for name, x in fields.items()})
    return lower(plan, lambda name: generator(1, name))(fields)["total"]


def test_slices_cover_a_part_and_go_to_the_children_in_order():
    x = torch.arange(6.0, dtype=torch.float64).view(1, 6).requires_grad_()
    y = pieces(lambda s: descend.Slice(s, slice_points=[1, 2, 4, 5]), 3, {"x": x})
    assert y.item() == 1 + 10 * (2 + 3) + 100 * 4
    y.backward()
    assert x.grad.tolist() == [[0, 1, 10, 10, 100, 0]]


def test_cross_grid_sums_are_given_whole_or_in_equal_pieces():
    a = torch.arange(4.0, dtype=torch.float64).view(1, 4)
    b = 10 * a
    whole = pieces(lambda *s: descend.Cross_Grid_Sum(*s), 2, {"a": a, "b": b})
    assert whole.item() == 11 * 6 + 10 * 11 * 6
    cut = pieces(lambda *s: descend.Cross_Grid_Sum_Slice(*s), 2, {"a": a, "b": b})
    assert cut.item() == 11 * (0 + 1) + 10 * 11 * (2 + 3)


def test_a_stopped_gradient_is_zero_and_the_value_passes():
    x = random(2, 3)
    layer = Single(lambda s: descend.StopGradient(s), (3,))
    assert torch.equal(layer(x), x)
    assert not gradients(layer, x)[0].any()


def test_a_frozen_identity_zero_is_zero_both_ways():
    x = random(2, 3)
    layer = Single(lambda s: descend.IdentityZero(s, freeze=True), (3,))
    assert not layer(x).any()
    assert not gradients(layer, x)[0].any()


@pytest.mark.parametrize("pad", [0, 2])
def test_max_deterministic_is_max(pad):
    window = {"num_dims": 2, "pool_dims_i": 3, "pool_strides_i": 2, "pool_pads_i": pad}
    x = random(2, 3, 5, 7)
    padded = torch.nn.functional.pad(x, (pad,) * 4, value=-torch.inf)
    layer = Single(lambda s: descend.Pooling(s, pool_mode="max_deterministic", **window), (3, 5, 7))
    torch.testing.assert_close(layer(x), torch.nn.functional.max_pool2d(padded, 3, 2))
