"""Reductions and orders against onnxruntime."""

import numpy as np
from onnx import helper

from tests.onnx.files import agree, agree_in_one_file, case, drawn, node, write

S = (3, 6, 4)


def test_reductions(tmp_path):
    kinds = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare")
    cases = [
        case(f"Reduce{kind}", "x", np.array(axes), keepdims=keep)
        for kind in kinds
        for axes in ([1], [2, 3], [-1], [1, 2])
        for keep in (0, 1)
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_logarithms_of_sums(tmp_path):
    """exp(200) is infinite in float32."""
    cases = [
        case(kind, name, np.array(axes), keepdims=keep)
        for kind, name in (("ReduceLogSumExp", "large"), ("ReduceLogSum", "x"))
        for axes in ([1], [2, 3], [-1])
        for keep in (0, 1)
    ]
    x = np.abs(drawn(2, *S))
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S, "large": S}, x, 200 * x)


def test_places_along_any_dimension_with_ties(tmp_path):
    nodes, outputs = [], []
    for kind in ("ArgMax", "ArgMin"):
        for axis in (1, 2, -1):
            for options in ({}, {"keepdims": 0}, {"select_last_index": 1}):
                outputs.append(f"{kind}{len(outputs)}")
                nodes.append(node(kind, "x", out=f"{outputs[-1]}_place", axis=axis, **options))
                nodes.append(node("Cast", f"{outputs[-1]}_place", out=outputs[-1], to=1))
    x = np.random.default_rng(0).integers(0, 3, (5, *S)).astype(np.float32)
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}, outputs), x)


def test_the_first_entries_of_an_order(tmp_path):
    nodes, constants = [], {}
    for k, largest in ((1, 1), (3, 1), (6, 0), (2, 0)):
        constants[f"k{k}"] = np.array([k])
        nodes.append(helper.make_node("TopK", ["x", f"k{k}"], [f"y{k}", f"i{k}"], name=f"top{k}", largest=largest))
    outputs = [one.output[0] for one in nodes]
    agree(write(tmp_path / "m.onnx", nodes, {"x": (6,)}, outputs, constants), drawn(4, 6))


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


def test_the_place_of_the_first(tmp_path):
    one = helper.make_node("TopK", ["x", "k"], ["y", "i"], name="top", axis=1)
    path = write(
        tmp_path / "m.onnx", [one, node("Cast", "i", out="z", to=1)], {"x": (6,)}, ("y", "z"), {"k": np.array([1])}
    )
    agree(path, drawn(4, 6))
