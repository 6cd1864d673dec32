"""Entries that are picked, put together and placed, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import helper

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree, agree_in_one_file, case, drawn, node, with_indices, write

S = (3, 6, 4)


def test_pieces_and_their_order(tmp_path):
    split = helper.make_node("Split", ["x", "sizes"], ["a", "b"], name="split", axis=2)
    nodes, constants = [split, node("Concat", "b", "a", "b", axis=-2)], {"sizes": np.array([2, 4])}
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants), drawn(2, *S))


def test_slices_in_steps(tmp_path):
    cases = [
        case("Slice", "x", *map(np.array, bounds))
        for bounds in (
            ([1, -3], [9, 6], [3, 2]),
            ([-1], [-(2**63)], [2], [-1]),
            ([4], [0], [2], [-1]),
            ([5], [-7], [2], [-2]),
            ([0], [2**63 - 1], [2], [2]),
            ([1, -1], [6, -5], [2, 3], [3, -1]),
            ([0, 2], [2, -9], [1, -2], [1, -1]),
        )
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_places_in_any_order_and_shape(tmp_path):
    each = (2, [2], [1, 2], [-1, 0, 2], [[2, 0], [1, 1]], [[0], [1]], [2, 2, 0], [-1, 0, -2], [0, 1, 2] * 2)
    cases = [case("Gather", "x", np.array(places), axis=axis) for axis in (1, 2, 3) for places in each]
    cases.append(case("Gather", "x", np.array([0, 0, 1, 1, 2, 2]), axis=1))
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_one_hot(tmp_path):
    shapes = {"a": (), "b": (4,), "c": (2, 3)}
    draw, path = np.random.default_rng(0), tmp_path / "m.onnx"
    nodes = [node("OneHot", name, "size", "values", out=f"{name}_hot") for name in shapes]
    constants = {"size": np.array(5), "values": np.array([0, 2], np.float32)}
    write(path, nodes, shapes, [one.output[0] for one in nodes], constants)
    agree(with_indices(path, *shapes), *(draw.integers(-7, 7, (3, *shape)) for shape in shapes.values()))


def test_many_places(tmp_path):
    places = np.random.default_rng(1).integers(0, 6, 500)
    path = write(tmp_path / "m.onnx", [node("Gather", "x", "i", axis=2)], {"x": S}, constants={"i": places})
    assert len(agree(path, drawn(2, *S)).layers) < 10


def test_places_of_each_sample_in_one_dimension(tmp_path):
    path = write(tmp_path / "m.onnx", [node("GatherElements", "x", "i", axis=1)], {"x": (6,), "i": (4,)})
    agree(with_indices(path, "i"), drawn(2, 6), np.array([[0, 5, -1, 2], [3, 3, 0, -6]]))


def test_a_token_before_all_others(tmp_path):
    """As exporters write token.expand(len(x), -1, -1): where a size is −1, it is 1 for Expand."""
    nodes = [
        node("Shape", "x", out="sizes"),
        node("Gather", "sizes", "zero", out="n"),
        node("Unsqueeze", "n", "axes", out="list"),
        node("Concat", "list", "minus", "minus", out="wanted", axis=0),
        node("Shape", "wanted", out="dims"),
        node("ConstantOfShape", "dims", out="ones", value=onnx.numpy_helper.from_array(np.array([1]))),
        node("Mul", "ones", "minus", out="negative"),
        node("Equal", "wanted", "negative", out="same"),
        node("Where", "same", "ones", "wanted", out="all"),
        node("Expand", "token", "all", out="t"),
        node("Concat", "t", "x", axis=1),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1]), "token": drawn(1, 1, 4)}
    agree(write(tmp_path / "m.onnx", nodes, {"x": (5, 4)}, constants=constants), drawn(3, 5, 4))


@pytest.mark.parametrize("index", [[[0, 3, 3], [4, -1, 2]], [[1, 1, 1], [0, 1, -5]]])
def test_entries_are_added_where_an_index_says(tmp_path, index):
    """Places that come twice are both added, and those below 0 count from the end."""
    nodes = [node("ScatterElements", "x", "i", "u", axis=1, reduction="add")]
    path = with_indices(write(tmp_path / "m.onnx", nodes, {"x": (5,), "i": (3,), "u": (3,)}), "i")
    agree(path, drawn(2, 5), np.array(index), drawn(2, 3, seed=1))


def test_entries_put_in_the_place_of_others_are_refused(tmp_path):
    path = write(
        tmp_path / "m.onnx", [node("ScatterElements", "x", "i", "u", axis=1)], {"x": (5,), "i": (3,), "u": (3,)}
    )
    with pytest.raises(Unsupported, match=r"puts entries in the place of others, and Scatter adds them"):
        descend.onnx.load(path)
