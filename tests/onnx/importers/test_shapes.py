"""The same entries in other shapes, and computations with sizes, against onnxruntime."""

import numpy as np
import onnx
import pytest

import descend
from descend.errors import Unsupported
from descend.onnx.importers.shapes import new_axes, wanted_sizes
from descend.onnx.values import MULTIPLE, ConstantValue, ShapeValue, UnsupportedNode
from tests.onnx.files import a_node, agree, agree_in_one_file, case, drawn, node, write

S, WITH_ONE = (3, 6, 4), (3, 1, 6, 4)


def test_the_same_entries_in_other_shapes(tmp_path):
    cases = [
        case("Reshape", "x", [0, -1, 4]),
        case("Reshape", "x", [-1, 9, 8]),
        case("Flatten", "x"),
        case("Squeeze", "x", [2]),
        case("Squeeze", "x"),
        case("Unsqueeze", "x", [1, -1]),
        case("Expand", "x", [1, 3, 5, 6, 4]),
        case("Expand", "x", [5, 6, 4]),
        case("Tile", "x", [1, 2, 1, 1, 3]),
        case("Transpose", "x", perm=[0, 4, 1, 3, 2]),
        case("Transpose", "z", perm=[0, 3, 1, 2]),
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": WITH_ONE, "z": S}, drawn(2, *WITH_ONE), drawn(2, *S))


def test_shapes_that_are_computed_from_the_number_of_samples(tmp_path):
    """As exporters write x.view(len(x), -1, 2)."""
    nodes = [
        node("Shape", "x", out="sizes"),
        node("Gather", "sizes", "zero", out="first"),
        node("Unsqueeze", "first", "axes", out="list"),
        node("Concat", "list", "rest", out="wanted", axis=0),
        node("Reshape", "x", "wanted"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2])}
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants), drawn(5, *S))


def test_one_number_for_every_sample_and_a_count_of_sizes(tmp_path):
    """ones_like(x) · len(x.shape), for 4 dimensions with that of the samples."""
    nodes = [
        node("Shape", "x", out="sizes"),
        node("ConstantOfShape", "sizes", out="ones", value=onnx.numpy_helper.from_array(np.ones(1, np.float32))),
        node("Size", "sizes", out="count"),
        node("Cast", "count", out="number", to=1),
        node("Mul", "ones", "number", out="fours"),
        node("Add", "x", "fours"),
    ]
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}), drawn(2, *S))


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (node("Flatten", "x", axis=2), "has axis 2, which joins samples"),
        (node("Squeeze", "x", "zero"), "takes away"),
        (node("Tile", "x", "twice"), "repeats samples"),
        (node("Expand", "x", "more"), "puts dimensions before that of the samples"),
        (node("Reshape", "x", "wrong"), "makes"),
        (node("Size", "x"), "counts samples"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_what_works_on_samples_is_refused_by_name(tmp_path, one, message):
    constants = {
        "zero": np.array([0]),
        "twice": np.array([2, 1, 1, 1]),
        "more": np.array([1, 2, 3, 6, 4]),
        "wrong": np.array([0, -1, 5]),
    }
    path = write(tmp_path / "m.onnx", [one], {"x": S}, constants=constants)
    with pytest.raises(Unsupported, match=rf"node 'the_{one.op_type}' \({one.op_type}\) {message}"):
        descend.onnx.load(path)


def test_new_axes_are_counted_in_the_result():
    axes = [ConstantValue(np.array(one)) for one in ([1, -1], [2, 2], [5])]
    assert new_axes(a_node("Unsqueeze", None, axes[0]), 3) == {1, 4}  # of 5 dimensions
    with pytest.raises(UnsupportedNode, match="puts in an axis twice"):
        new_axes(a_node("Unsqueeze", None, axes[1]), 3)
    with pytest.raises(UnsupportedNode, match=r"has axes \[5\], and its input has 4 dimensions"):
        new_axes(a_node("Unsqueeze", None, axes[2]), 3)


def test_a_multiple_of_the_samples_is_a_size_to_work_out():
    sizes = ShapeValue((MULTIPLE, None, 4))
    assert wanted_sizes(a_node("Reshape", None, sizes)) == [-1, None, 4]
    assert wanted_sizes(a_node("Reshape", None, ConstantValue(np.array([0, -1, 4])))) == [0, -1, 4]
