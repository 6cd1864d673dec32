"""Tensors whose samples are elsewhere in between, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import descend
from descend.errors import Unsupported
from descend.graph import Input
from descend.onnx.permuted import joined_samples, plain_shape
from descend.onnx.values import Permuted, Tensor
from tests.onnx.files import agree, drawn, node, write

S = (3, 6, 4)


def test_an_output_must_have_the_samples_first(tmp_path):
    nodes = [node("Reshape", "x", "rows", out="r"), node("Relu", "r")]
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants={"rows": np.array([-1, 4])})
    with pytest.raises(Unsupported, match="output 'y' has samples joined with other dimensions"):
        descend.onnx.load(path)


def test_a_dimension_of_one_that_goes_is_not_joined_with_the_samples(tmp_path):
    nodes = [node("Reshape", "x", "rows", out="r"), node("Gather", "r", "places", axis=1)]
    constants = {"rows": np.array([-1, 4, 5]), "places": np.array([0, 1, 3, 0])}
    agree(write(tmp_path / "m.onnx", nodes, {"x": (1, 4, 5)}, constants=constants), drawn(2, 1, 4, 5))


MOVED = {
    "entries at places of the first two dimensions": [
        node("Transpose", "x", out="a", perm=[2, 3, 0, 1]),
        node("GatherND", "a", "pairs", out="b"),
        node("Transpose", "b", perm=[1, 0, 2]),
    ],
    "a tensor of fewer dimensions": [
        node("Transpose", "x", out="a", perm=[2, 1, 0, 3]),
        node("Gather", "a", "second", out="b", axis=0),
        node("Mul", "a", "b", out="c"),
        node("Add", "c", "line", out="d"),
        node("Transpose", "d", perm=[2, 1, 0, 3]),
    ],
    "steps backwards": [
        node("Transpose", "x", out="a", perm=[2, 0, 1, 3]),
        node("Slice", "a", "minus", "far", "zero", "minus", out="b"),
        node("Transpose", "b", perm=[1, 2, 0, 3]),
    ],
    "there and back": [
        node("Transpose", "x", out="a", perm=[2, 0, 3, 1]),
        node("Relu", "a", out="b"),
        node("Mul", "b", "last", out="c"),
        node("Concat", "b", "c", "b", out="d", axis=2),
        node("Slice", "d", "one", "nine", "two", out="e"),
        node("Transpose", "e", perm=[1, 3, 0, 2]),
    ],
    "a product with a matrix": [
        node("Transpose", "x", out="a", perm=[2, 1, 0, 3]),
        node("MatMul", "a", "matrix", out="b"),
        node("Add", "b", "bias", out="c"),
        node("Transpose", "c", perm=[2, 0, 1, 3]),
    ],
    "joined and taken apart": [
        node("Transpose", "x", out="a", perm=[2, 0, 1, 3]),
        node("Reshape", "a", "rows", out="b"),
        node("Gemm", "b", "matrix", "bias", out="c"),
        node("Reshape", "c", "apart", out="d"),
        node("Transpose", "d", perm=[1, 0, 2, 3]),
    ],
    "split within a dimension": [
        node("Transpose", "x", out="a", perm=[2, 0, 3, 1]),
        node("Reshape", "a", "halves", out="b"),
        node("Transpose", "b", perm=[2, 0, 1, 3]),
    ],
    "ones, and one of several": [
        node("Unsqueeze", "x", "zero", out="a"),
        node("Transpose", "a", out="b", perm=[4, 0, 1, 2, 3]),
        node("Squeeze", "b", "one", out="c"),
        node("Gather", "c", "second", axis=0),
    ],
    "by sizes that are computed": [
        node("Transpose", "x", out="a", perm=[2, 0, 1, 3]),
        node("Shape", "a", out="sizes"),
        node("Gather", "sizes", "second", out="n"),
        node("Mul", "n", "six", out="n6"),
        node("Unsqueeze", "n6", "zero", out="rows_of"),
        node("Concat", "rows_of", "twelve", out="wanted", axis=0),
        node("Reshape", "a", "wanted", out="b"),
        node("Reshape", "b", "back", out="c"),
        node("Transpose", "c", perm=[1, 0, 2]),
    ],
}


@pytest.mark.parametrize("name", MOVED)
def test_samples_may_be_elsewhere_in_between(tmp_path, name):
    constants = {
        "last": drawn(3, seed=1),
        "matrix": drawn(4, 5, seed=2),
        "bias": drawn(5, seed=3),
        "rows": np.array([-1, 4]),
        "apart": np.array([6, -1, 3, 5]),
        "halves": np.array([2, 3, -1, 12]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "nine": np.array([9]),
        "second": np.array(1),
        "six": np.array(6),
        "twelve": np.array([12]),
        "back": np.array([6, -1, 12]),
        "pairs": np.array([[0, 1], [5, -1], [2, 2]]),
        "line": drawn(3, 1, 4, seed=4),
        "minus": np.array([-1]),
        "far": np.array([-(2**63)]),
    }
    nodes = MOVED[name]
    for place, each in enumerate(nodes):
        each.name = f"node{place}"
    used = {one for each in nodes for one in each.input}
    constants = {key: value for key, value in constants.items() if key in used}
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants), drawn(2, *S))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Softmax", "t", axis=1)],
        [node("Add", "t", "matrix")],
        [node("Add", "t", "x")],
        [node("MatMul", "t", "t")],
        [node("Gather", "t", "second", axis=2)],
        [node("Squeeze", "t", "zero")],
        [node("Concat", "t", "t", axis=2)],
        [node("Reshape", "t", "rest")],
        [node("MaxPool", "t", kernel_shape=[2, 2])],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_what_works_on_samples_that_are_elsewhere_is_refused_by_name(tmp_path, nodes):
    constants = {"matrix": drawn(2, 4), "second": np.array(1), "zero": np.array([0]), "rest": np.array([7, -1])}
    nodes = [node("Transpose", "x", out="t", perm=[2, 1, 0, 3]), *nodes]
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants)
    with pytest.raises(Unsupported, match=rf"node 'the_{nodes[1].op_type}' \({nodes[1].op_type}\) "):
        descend.onnx.load(path)


def test_an_output_whose_samples_are_elsewhere_comes_with_the_samples_first(tmp_path):
    nodes = [node("Transpose", "x", out="t", perm=[2, 1, 0, 3]), node("Mul", "t", "two")]
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants={"two": np.float32(2)})
    x = drawn(2, *S)
    got = descend.onnx.load(path).to_torch(outputs=["y"])(torch.from_numpy(x))
    np.testing.assert_array_equal(got.numpy(), 2 * x.transpose(2, 1, 0, 3).transpose(2, 0, 1, 3))


def test_an_input_whose_one_free_dimension_is_not_the_first_has_the_samples_there(tmp_path):
    nodes = [node("MatMul", "x", "w", out="a"), node("Transpose", "a", perm=[1, 0, 2])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (2, 4)}, constants={"w": drawn(4, 3)})
    model = onnx.load(path)
    first, second, _ = model.graph.input[0].type.tensor_type.shape.dim
    first.dim_value, second.dim_param = 5, "samples"
    onnx.save(model, path)
    x = drawn(5, 2, 4)
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    got = descend.onnx.load(path).to_torch()(torch.from_numpy(x.transpose(1, 0, 2)))
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-5, atol=1e-6)


def test_where_the_samples_are_and_what_the_layer_gives():
    layer = Input(data_field="x", name="x")
    elsewhere = Permuted(layer, ((6,), (None, 2), (4,)))  # (6, samples · 2, 4) in the file
    assert joined_samples(elsewhere)
    assert plain_shape(elsewhere) == (6, 2, 4)
    assert not joined_samples(Permuted(layer, ((6,), (None,))))
    assert joined_samples(Tensor(layer, (2, 4), joined=1))
    assert plain_shape(Tensor(layer, ())) == (1,)
