"""Entries that are picked, put together and placed, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import descend
from descend.errors import Unsupported
from tests.lower.onnx.files import agree, drawn, node, write

S = (3, 6, 4)


def with_indices(path, name):
    """The same file with an input of whole numbers."""
    model = onnx.load(path)
    next(one for one in model.graph.input if one.name == name).type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("begins", "ends", "axes", "steps"),
    [
        ([-1], [-(2**63)], [2], [-1]),
        ([4], [0], [2], [-1]),
        ([5], [-7], [2], [-2]),
        ([0], [2**63 - 1], [2], [2]),
        ([1, -1], [6, -5], [2, 3], [3, -1]),
        ([0, 2], [2, -9], [1, -2], [1, -1]),
    ],
)
def test_slices_in_steps(tmp_path, begins, ends, axes, steps):
    named = {f"c{i}": np.array(one, np.int64) for i, one in enumerate((begins, ends, axes, steps))}
    agree(write(tmp_path / "m.onnx", [node("Slice", "x", *named)], {"x": S}, constants=named), drawn(2, *S))


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("places", [[[2, 0], [1, 1]], [[0], [1]], [2, 2, 0], [-1, 0, -2]])
def test_places_in_any_order_and_shape(tmp_path, axis, places):
    constants = {"i": np.array(places, np.int64)}
    path = write(tmp_path / "m.onnx", [node("Gather", "x", "i", axis=axis)], {"x": S}, constants=constants)
    agree(path, drawn(2, *S))


def test_many_places(tmp_path):
    places = np.random.default_rng(1).integers(0, 6, 500)
    path = write(tmp_path / "m.onnx", [node("Gather", "x", "i", axis=2)], {"x": S}, constants={"i": places})
    assert len(agree(path, drawn(2, *S)).layers) < 10


def test_places_of_each_sample_in_one_dimension(tmp_path):
    path = write(tmp_path / "m.onnx", [node("GatherElements", "x", "i", axis=1)], {"x": (6,), "i": (4,)})
    agree(with_indices(path, "i"), drawn(2, 6), np.array([[0, 5, -1, 2], [3, 3, 0, -6]]))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_one_hot(tmp_path, shape):
    constants = {"size": np.array(5), "values": np.array([0, 2], np.float32)}
    path = write(tmp_path / "m.onnx", [node("OneHot", "x", "size", "values")], {"x": shape}, constants=constants)
    agree(with_indices(path, "x"), np.random.default_rng(0).integers(-7, 7, (3, *shape)))


@pytest.mark.parametrize("shape", [(5,), (5, 5), (4, 5)])
@pytest.mark.parametrize("options", [{}, {"upper": 0}])
@pytest.mark.parametrize("offset", [None, -1, 2])
def test_triangles(tmp_path, shape, options, offset):
    constants = {} if offset is None else {"k": np.array(offset)}
    path = write(tmp_path / "m.onnx", [node("Trilu", "x", *constants, **options)], {"x": shape}, constants=constants)
    if len(shape) == 1:
        with pytest.raises(Unsupported, match="takes a triangle of samples"):
            descend.onnx.load(path)
        return
    agree(path, drawn(2, *shape))


def test_a_mask_may_hold_infinities(tmp_path):
    mask = np.where(np.tril(np.ones((4, 4))) > 0, 0, -np.inf).astype(np.float32)
    nodes = [node("Add", "x", "mask", out="s"), node("Softmax", "s")]
    model = agree(write(tmp_path / "m.onnx", nodes, {"x": (2, 4, 4)}, constants={"mask": mask}), drawn(2, 2, 4, 4))
    assert all(isinstance(one.optimizer, descend.NoOptimizer) for one in model.weights)


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
