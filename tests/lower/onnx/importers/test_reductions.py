"""Reductions and orders against onnxruntime."""

import numpy as np
import pytest
import torch
from onnx import helper

from tests.lower.onnx.files import agree, drawn, node, write

S = (3, 6, 4)


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("options", [{}, {"keepdims": 0}, {"select_last_index": 1}])
def test_places_along_any_dimension_with_ties(tmp_path, kind, axis, options):
    nodes = [node(kind, "x", out="i", axis=axis, **options), node("Cast", "i", to=1)]
    x = np.random.default_rng(0).integers(0, 3, (5, *S)).astype(np.float32)
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}), x)


@pytest.mark.parametrize("axes", [[1], [2, 3], [-1]])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["ReduceLogSumExp", "ReduceLogSum"])
def test_logarithms_of_sums(tmp_path, kind, axes, keep):
    path = write(
        tmp_path / "m.onnx", [node(kind, "x", "axes", keepdims=keep)], {"x": S}, constants={"axes": np.array(axes)}
    )
    agree(path, np.abs(drawn(2, *S)) * (200 if kind == "ReduceLogSumExp" else 1))


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_log_softmax_along_any_dimension(tmp_path, axis):
    path = write(tmp_path / "m.onnx", [node("LogSoftmax", "x", axis=axis)], {"x": S})
    model = agree(path, drawn(2, *S) * 200)
    x = torch.randn(2, *S, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    module = model.to_torch().double()
    g = torch.randn(2, *S, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (want,) = torch.autograd.grad(x.log_softmax(axis), x, g)
    torch.testing.assert_close(torch.autograd.grad(module(x), x, g)[0], want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("k", "largest"), [(1, 1), (3, 1), (6, 0), (2, 0)])
def test_the_first_entries_of_an_order(tmp_path, k, largest):
    one = helper.make_node("TopK", ["x", "k"], ["y", "i"], name="top", largest=largest)
    agree(write(tmp_path / "m.onnx", [one], {"x": (6,)}, constants={"k": np.array([k])}), drawn(4, 6))


def test_the_place_of_the_first(tmp_path):
    one = helper.make_node("TopK", ["x", "k"], ["y", "i"], name="top", axis=1)
    path = write(
        tmp_path / "m.onnx", [one, node("Cast", "i", out="z", to=1)], {"x": (6,)}, ("y", "z"), {"k": np.array([1])}
    )
    agree(path, drawn(4, 6))


def test_numbers_without_a_dimension_of_their_own(tmp_path):
    """A cosine: each sample has one number, and the file's tensors are (samples,)."""
    nodes = [
        node("Mul", "x", "z", out="p"),
        node("ReduceSum", "p", "last", out="dot", keepdims=0),
        node("ReduceL2", "x", "last", out="a", keepdims=0),
        node("Max", "a", "least", out="b"),
        node("Div", "dot", "b"),
    ]
    constants = {"last": np.array([1]), "least": np.array(1e-8, np.float32)}
    agree(
        write(tmp_path / "m.onnx", nodes, {"x": (5,), "z": (5,)}, constants=constants), drawn(3, 5), drawn(3, 5, seed=1)
    )
