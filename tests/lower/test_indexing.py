"""Picking, placing, ordering and repeating entries, against NumPy and by hand."""

import hashlib
import math
import struct

import numpy as np
import pytest
import torch

import descend
from descend.errors import DataError
from tests.lower.single import Single, check_against, f64, gradients, random

nan = math.nan


def rows(*values):
    return f64(*[list(row) for row in values])


@pytest.mark.parametrize(
    ("make", "expression", "shape"),
    [
        (lambda s: descend.Sort(s), lambda x: np.sort(x, 1), (5,)),
        (lambda s: descend.Sort(s, descending=True), lambda x: -np.sort(-x, 1), (5,)),
        (lambda s: descend.TensorPermute(s, axes=[2, 0, 1]), lambda x: x.transpose(0, 3, 1, 2), (2, 3, 4)),
        (lambda s: descend.TensorPermute(s, axes=[0]), lambda x: x, (2,)),
        (lambda s: descend.Tessellate(s, dims=[7]), lambda x: np.tile(x, (1, 3))[:, :7], (3,)),
        (lambda s: descend.Tessellate(s, dims=[1, 4]), lambda x: np.tile(x, (1, 1, 2))[:, :1, :4], (2, 3)),
        (
            lambda s: descend.Tessellate(s, dims=[4, 3, 2, 5]),
            lambda x: np.tile(x, (1, 2, 3, 1, 3))[:, :4, :3, :2, :5],
            (2, 1, 2, 2),
        ),
        (
            lambda s: descend.Upsample(s, upsample_mode="nearest", num_dims=2, scale_factors_i=2),
            lambda x: x.repeat(2, 2).repeat(2, 3),
            (2, 3, 2),
        ),
        (
            lambda s: descend.Upsample(s, upsample_mode="nearest", num_dims=2, has_vectors=True, scale_factors=[3, 1]),
            lambda x: x.repeat(3, 2),
            (2, 3, 2),
        ),
    ],
)
def test_order_and_repetition_are_their_expressions(make, expression, shape):
    check_against(make, expression, random(2, *shape))


def test_gradients_go_back_through_equal_entries_in_their_order():
    layer = Single(lambda s: descend.Sort(s, descending=True), (3,))
    x = f64([1.0, 2.0, 1.0]).requires_grad_()
    (layer(x) * f64([1, 10, 100])).sum().backward()
    assert x.grad.tolist() == [[10, 1, 100]]


# The layer, its inputs, its output.
BY_HAND = [
    (lambda s: descend.Argmax(s), [rows((1, 3, 3), (-1, -2, -1))], rows((1,), (0,))),
    (lambda s: descend.Argmin(s), [rows((3, 1, 1), (0, 0, 0))], rows((1,), (0,))),
    (lambda s: descend.InTopK(s, k=1), [rows((2, 2, 1), (1, 2, 2))], rows((1, 0, 0), (0, 1, 0))),
    (lambda s: descend.InTopK(s, k=2), [rows((2, 1, 1), (1, 2, 3))], rows((1, 1, 0), (0, 1, 1))),
    (lambda s: descend.InTopK(s, k=9), [rows((2, 1, 1))], rows((1, 1, 1))),
    (
        lambda s: descend.OneHot(s, size=3),
        [rows((0,), (2.9,), (3,), (-0.1,), (nan,))],
        rows((1, 0, 0), (0, 0, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0)),
    ),
    (
        lambda x, i: descend.Gather(x, i),
        [rows((5, 6, 7), (8, 9, 10)), rows((2.5, 0, 3, -1), (1, 1, nan, 0))],
        rows((7, 5, 0, 0), (9, 9, 0, 8)),
    ),
    (
        lambda x, i: descend.Gather(x, i, axis=0),
        [f64([[1.0, 2], [3, 4]]), rows((1, 1, 5))],
        f64([[3.0, 4], [3, 4], [0, 0]]),
    ),
    (
        lambda x, i: descend.Gather(x, i, axis=1),
        [f64([[1.0, 2], [3, 4]]), rows((1, -1, 0))],
        f64([[2.0, 0, 1], [4, 0, 3]]),
    ),
    (
        lambda x, i: descend.Scatter(x, i, dims=[4]),
        [rows((5, 6, 7), (8, 9, 10)), rows((3.5, 0, 3), (4, -1, nan))],
        rows((6, 0, 0, 12), (0, 0, 0, 0)),
    ),
    (
        lambda x, i: descend.Scatter(x, i, dims=[3, 2], axis=0),
        [f64([[1.0, 2], [3, 4]]), rows((2, 2))],
        f64([[0.0, 0], [0, 0], [4, 6]]),
    ),
    (
        lambda x, i: descend.Scatter(x, i, dims=[2, 3], axis=1),
        [f64([[1.0, 2], [3, 4]]), rows((2, 0))],
        f64([[2.0, 0, 1], [4, 0, 3]]),
    ),
    (
        lambda x, p: descend.Crop(x, p, dims=[2]),
        [rows(range(4), range(4), range(4), range(4)), rows((0,), (0.34,), (0.99,), (1,))],
        rows((0, 1), (1, 2), (2, 3), (2, 3)),
    ),
    (
        lambda x, p: descend.Crop(x, p, dims=[1, 2]),
        [f64(*[[[0.0, 1, 2], [3, 4, 5]]] * 2), rows((0.5, 0), (0, 0.5))],
        f64([[3.0, 4]], [[1, 2]]),
    ),
]


@pytest.mark.parametrize(("make", "xs", "want"), BY_HAND)
def test_indices_pick_what_they_name(make, xs, want):
    xs = [x.unsqueeze(0) if len(x) != len(xs[-1]) else x for x in xs]
    want = want if len(want) == len(xs[0]) else want.unsqueeze(0)
    layer = Single(make, *(tuple(x.shape[1:]) for x in xs))
    assert torch.equal(layer(*xs), want)
    for index in xs[1:]:
        assert not gradients(layer, *xs)[1].any(), index


@pytest.mark.parametrize(
    ("make", "shape", "indices"),
    [
        (lambda x, i: descend.Gather(x, i), (4,), rows((2, 2, 9, -1), (0, 1, 2, 3))),
        (lambda x, i: descend.Gather(x, i, axis=0), (4, 3), rows((2, 2, 9), (0, 1, -2))),
        (lambda x, i: descend.Gather(x, i, axis=1), (3, 4), rows((2, 2, 9), (0, 1, -2))),
        (lambda x, i: descend.Scatter(x, i, dims=[3]), (4,), rows((2, 2, 9, -1), (0, 1, 2, 3))),
        (lambda x, i: descend.Scatter(x, i, dims=[2, 4], axis=0), (3, 4), rows((1, 1, 9), (0, 1, -2))),
        (lambda x, i: descend.Scatter(x, i, dims=[3, 2], axis=1), (3, 4), rows((1, 1, 9, 0), (0, 1, -2, 0))),
        (lambda x, p: descend.Crop(x, p, dims=[2, 2]), (3, 4), rows((0.1, 0.9), (1, 0))),
    ],
)
def test_gradients_flow_to_the_data(make, shape, indices):
    layer = Single(make, shape, tuple(indices.shape[1:]))
    assert torch.autograd.gradcheck(lambda x: layer(x, indices), random(2, *shape))


def test_a_place_outside_of_the_data_is_an_error():
    layer = Single(lambda x, p: descend.Crop(x, p, dims=[2], name="part"), (4,), (1,))
    for place in (1.01, -0.01, nan):
        with pytest.raises(DataError, match=r"layer 'part' \(Crop\): a position is outside \[0, 1\]"):
            layer(f64([0, 1, 2, 3]), f64([place]))


@pytest.mark.parametrize(
    ("dtype", "code", "bits"), [(torch.float64, "<d", 53), (torch.float32, "<f", 24), (torch.float16, "<e", 11)]
)
def test_uniform_hash_is_md5(dtype, code, bits):
    x = torch.tensor([[0.0, -0.0, 1.0], [3.25, -7.5, 65504.0]], dtype=dtype)
    layer = Single(lambda s: descend.UniformHash(s), (3,))
    digests = [hashlib.md5(struct.pack(code, float(value))).digest()[:8] for value in x.flatten()]
    want = [(int.from_bytes(digest, "little") >> (64 - bits)) / 2**bits for digest in digests]
    y = layer(x)
    assert y.dtype == dtype
    assert y.flatten().tolist() == want
    assert not y.requires_grad


def test_uniform_hash_looks_uniform():
    y = Single(lambda s: descend.UniformHash(s), (20000,))(torch.arange(20000.0).view(1, -1))
    assert y.min() >= 0
    assert y.max() < 1
    counts = torch.histc(y, 10, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-squared of 9 degrees: above it once in a thousand


def test_a_sample_with_nan_has_no_largest_entries():
    layer = Single(lambda x: descend.InTopK(x, k=2), (3,))
    assert layer(rows([nan, 1, 0], [3, 1, 2], [0, nan, nan])).tolist() == [[0, 0, 0], [1, 0, 1], [0, 0, 0]]
