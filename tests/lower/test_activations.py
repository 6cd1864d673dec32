"""Activations that are layers of their own."""

import numpy as np
import pytest
import torch

import descend
from tests.lower.single import Single, check_against, f64, random


def softmax(x, axes):
    e = np.exp(x)
    return e / e.sum(axes, keepdims=True)


@pytest.mark.parametrize(
    ("make", "expression"),
    [
        (lambda s: descend.Elu(s), lambda x: np.where(x > 0, x, np.expm1(x))),
        (lambda s: descend.Elu(s, alpha=2), lambda x: np.where(x > 0, x, 2 * np.expm1(x))),
        (lambda s: descend.LeakyRelu(s), lambda x: np.where(x > 0, x, 0.01 * x)),
        (lambda s: descend.LeakyRelu(s, negative_slope=0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
        (lambda s: descend.Relu(s), lambda x: np.maximum(x, 0)),
        (lambda s: descend.LogSoftmax(s), lambda x: np.log(softmax(x, (1, 2, 3)))),
        (lambda s: descend.Softmax(s), lambda x: softmax(x, (1, 2, 3))),
        (lambda s: descend.Softmax(s, softmax_mode="channel"), lambda x: softmax(x, 1)),
        (lambda s: descend.ChannelwiseSoftmax(s), lambda x: softmax(x, (2, 3))),
        (lambda s: descend.ChannelwiseSoftmax(s, dim=-3), lambda x: softmax(x, (2, 3))),
        (lambda s: descend.ChannelwiseSoftmax(s, dim=2), lambda x: softmax(x, (1, 2))),
        (lambda s: descend.ChannelwiseSoftmax(s, dim=-1), lambda x: softmax(x, (1, 2))),
        (lambda s: descend.ChannelwiseSoftmax(s, single_dim_mode=True), lambda x: softmax(x, 1)),
        (lambda s: descend.ChannelwiseSoftmax(s, dim=1, single_dim_mode=True), lambda x: softmax(x, 2)),
        (lambda s: descend.ChannelwiseSoftmax(s, dim=-1, single_dim_mode=True), lambda x: softmax(x, 3)),
    ],
)
def test_activations_are_their_expressions(make, expression):
    check_against(make, expression, random(2, 3, 2, 4))


def test_a_softmax_of_one_dimension_has_one_slice_or_slices_of_one_entry():
    assert Single(lambda s: descend.ChannelwiseSoftmax(s), (3,))(random(2, 3)).tolist() == [[1.0] * 3] * 2
    check_against(lambda s: descend.ChannelwiseSoftmax(s, single_dim_mode=True), lambda x: softmax(x, 1), random(2, 3))


def test_softmax_is_kept_from_zero_and_its_rule_works_under_vmap():
    layer = Single(lambda s: descend.Softmax(s), (2,))
    y = layer(f64([0.0, -1e4]))
    assert y.tolist() == [[1.0, np.sqrt(np.finfo(np.float64).tiny)]]
    x = random(5, 1, 2)
    got = torch.vmap(torch.func.grad(lambda z: (layer(z) ** 2).sum()))(x)
    (torch.softmax(x, 2) ** 2).sum().backward()
    torch.testing.assert_close(got, x.grad)
