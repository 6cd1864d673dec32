"""ONNX files that others wrote, against what onnxruntime or the torch module computes."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import descend
from descend import zoo
from descend.errors import StorageError, Unsupported
from tests.lower.onnx.files import FLOAT, agree, drawn, node, write

S = (3, 6, 4)
UNARY = ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Neg", "Relu", "Round", "Sigmoid", "Sign", "Sin")
UNARY += ("Softplus", "Softsign", "Tanh", "Atan", "Sinh", "Cosh", "Asinh")


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        *[(kind, {}) for kind in UNARY],
        ("LeakyRelu", {"alpha": 0.25}),
        ("LeakyRelu", {}),
        ("Elu", {"alpha": 0.5}),
        ("Selu", {}),
        ("HardSigmoid", {}),
        ("HardSwish", {}),
        ("Celu", {"alpha": 0.5}),
        ("Mish", {}),
        ("SpaceToDepth", {"blocksize": 2}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Softmax", {}),
        ("Softmax", {"axis": 1}),
        ("Softmax", {"axis": -2}),
        ("Flatten", {}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("Transpose", {"perm": [0, 3, 1, 2]}),
        ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("LRN", {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
        ("Identity", {}),
    ],
)
def test_operators_of_one_tensor(tmp_path, kind, attributes):
    agree(write(tmp_path / "m.onnx", [node(kind, "x", **attributes)], {"x": S}), drawn(2, *S))


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 0, 2, 1]}),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [1, 1], "strides": [4, 3], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
        ("AveragePool", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [2, 0, 1, 1], "count_include_pad": 1}),
    ],
)
def test_windows_over_ends_that_are_padded_differently(tmp_path, kind, attributes):
    agree(write(tmp_path / "m.onnx", [node(kind, "x", **attributes)], {"x": S}), drawn(2, *S) - 3)


@pytest.mark.parametrize("attributes", [{"pads": [1, 0, 0, 2]}, {"auto_pad": "SAME_UPPER", "strides": [1, 2]}])
def test_convolutions_over_ends_that_are_padded_differently(tmp_path, attributes):
    constants = {"w": drawn(4, 3, 2, 2, seed=1), "b": drawn(4, seed=2)}
    agree(
        write(tmp_path / "m.onnx", [node("Conv", "x", "w", "b", **attributes)], {"x": S}, constants=constants),
        drawn(2, *S),
    )


@pytest.mark.parametrize(
    ("pads", "options", "mode"),
    [
        ([0, 0, 1, 2, 0, 0, 0, 3], {}, "constant"),
        ([0, 1, 0, 0, 0, 0, 2, 0], {"value": np.float32(1.5)}, "constant"),
        ([0, -1, 2, 0, 0, 0, -3, 1], {}, "constant"),
        ([0, 0, 2, 1, 0, 0, 3, 0], {}, "reflect"),
        ([0, 2, 0, 3, 0, 1, 0, 1], {}, "edge"),
        ([0, 0, 2, 1, 0, 0, 1, 2], {}, "wrap"),
        ([1, 2, 0, 1], {"value": np.float32(-1), "axes": np.array([-1, 2])}, "constant"),
    ],
)
def test_pads(tmp_path, pads, options, mode):
    constants = {"pads": np.array(pads), **options}
    inputs = ("pads", "value" if "value" in options else "", *(["axes"] if "axes" in options else []))
    agree(
        write(tmp_path / "m.onnx", [node("Pad", "x", *inputs, mode=mode)], {"x": S}, constants=constants), drawn(2, *S)
    )


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_channels_become_space(tmp_path, mode):
    path = write(tmp_path / "m.onnx", [node("DepthToSpace", "x", blocksize=2, mode=mode)], {"x": (12, 3, 2)})
    agree(path, drawn(2, 12, 3, 2))


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 6, 1), (3, 6, 4)])
def test_slopes_of_channels(tmp_path, shape):
    path = write(tmp_path / "m.onnx", [node("PRelu", "x", "s")], {"x": S}, constants={"s": drawn(*shape, seed=1)})
    agree(path, drawn(2, *S))


@pytest.mark.parametrize("axes", [[1], [2, 3], [-1], [1, 2]])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare"])
def test_reductions(tmp_path, kind, axes, keep):
    path = write(
        tmp_path / "m.onnx",
        [node(f"Reduce{kind}", "x", "axes", keepdims=keep)],
        {"x": S},
        constants={"axes": np.array(axes)},
    )
    agree(path, drawn(2, *S))


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
@pytest.mark.parametrize("other", [(), (1,), (4,), (6, 1), (3, 1, 1), (1, 3, 6, 4), (1, 1, 1, 4)])
@pytest.mark.parametrize("first", [False, True])
def test_constants_are_broadcast_as_onnx_says(tmp_path, kind, other, first):
    constant = np.abs(drawn(*other, seed=3)) + 0.5
    names = ("c", "x") if first else ("x", "c")
    path = write(tmp_path / "m.onnx", [node(kind, *names)], {"x": S}, constants={"c": constant.astype(np.float32)})
    agree(path, np.abs(drawn(2, *S)) + 0.5)


@pytest.mark.parametrize("shape", [(3, 6, 4), (1, 6, 1), (3, 1, 4)])
def test_tensors_are_broadcast_within_a_sample(tmp_path, shape):
    path = write(tmp_path / "m.onnx", [node("Add", "x", "z")], {"x": S, "z": shape})
    agree(path, drawn(2, *S), drawn(2, *shape, seed=1))


def constants_of(kind):
    c = {"w": drawn(4, 3, 3, 2, seed=1), "b": drawn(4, seed=2), "s": drawn(3, seed=3), "t": drawn(3, seed=4)}
    c |= {"m": drawn(3, seed=5), "v": np.abs(drawn(3, seed=6)) + 0.5, "g": drawn(3, 2, 3, 3, seed=7)}
    return c | {"row": drawn(4, seed=8), "col": drawn(4, seed=9)}


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [
        ("Conv", ["w", "b"], {"strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 2]}),
        ("Conv", ["w"], {"auto_pad": "VALID"}),
        ("ConvTranspose", ["g"], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
        ("BatchNormalization", ["s", "t", "m", "v"], {"epsilon": 1e-3}),
        ("InstanceNormalization", ["s", "t"], {}),
        ("LayerNormalization", ["row", "col"], {"axis": -1, "epsilon": 1e-3}),
        ("LayerNormalization", ["row"], {"axis": 3}),
    ],
)
def test_operators_with_weights(tmp_path, kind, inputs, attributes):
    constants = {name: array for name, array in constants_of(kind).items() if name in inputs}
    path = write(tmp_path / "m.onnx", [node(kind, "x", *inputs, **attributes)], {"x": S}, constants=constants)
    model = agree(path, drawn(2, *S))
    assert {one.name for one in model.weights} == set(inputs) or kind == "InstanceNormalization"


@pytest.mark.parametrize(("transposed", "bias"), [(0, True), (1, True), (1, False)])
def test_matrices(tmp_path, transposed, bias):
    w = drawn(4, 5) if transposed else drawn(5, 4)
    constants = {"w": w, **({"b": drawn(4, seed=1)} if bias else {})}
    path = write(
        tmp_path / "m.onnx", [node("Gemm", "x", *constants, transB=transposed)], {"x": (5,)}, constants=constants
    )
    agree(path, drawn(3, 5))


def test_a_constant_that_is_added_to_a_product_is_its_bias(tmp_path):
    nodes = [node("MatMul", "x", "w", out="p"), node("Add", "b", "p")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (6, 5)}, constants={"w": drawn(5, 4), "b": drawn(4, seed=1)})
    model = agree(path, drawn(2, 6, 5))
    assert [type(layer).__name__ for layer in model.layers] == ["Input", "ChannelwiseFullyConnected"]


def test_a_product_that_others_read_too_gets_no_bias(tmp_path):
    nodes = [node("MatMul", "x", "w", out="p"), node("Add", "p", "b", out="q"), node("Mul", "p", "q")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (6, 5)}, constants={"w": drawn(5, 4), "b": drawn(4, seed=1)})
    agree(path, drawn(2, 6, 5))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_products_of_tensors(tmp_path, rank):
    a, b = (2, 3, 6, 5)[4 - rank :], (2, 3, 5, 4)[4 - rank :]
    path = write(tmp_path / "m.onnx", [node("MatMul", "x", "z")], {"x": a, "z": b})
    agree(path, drawn(2, *a), drawn(2, *b, seed=1))


@pytest.mark.parametrize(
    ("kind", "constants", "attributes"),
    [
        ("Reshape", [[0, -1, 4]], {}),
        ("Reshape", [[-1, 9, 8]], {}),
        ("Squeeze", [[2]], {}),
        ("Unsqueeze", [[1, -1]], {}),
        ("Slice", [[1, -3], [9, 6], [3, 2]], {}),
        ("Expand", [[1, 3, 5, 6, 4]], {}),
        ("Expand", [[5, 6, 4]], {}),
        ("Tile", [[1, 2, 1, 1, 3]], {}),
        ("Gather", [[2]], {"axis": 3}),
        ("Gather", [[1, 2, 3]], {"axis": 3}),
        ("Gather", [[-1, 0, 2]], {"axis": 3}),
        ("Gather", [[0, 1, 2, 0, 1, 2]], {"axis": 1}),
        ("Gather", [[0, 0, 1, 1, 2, 2]], {"axis": 1}),
    ],
)
def test_shapes(tmp_path, kind, constants, attributes):
    shape = (3, 1, 6, 4)
    named = {f"c{i}": np.array(one, np.int64) for i, one in enumerate(constants)}
    path = write(tmp_path / "m.onnx", [node(kind, "x", *named, **attributes)], {"x": shape}, constants=named)
    agree(path, drawn(2, *shape))


def test_a_single_place_loses_its_dimension(tmp_path):
    path = write(
        tmp_path / "m.onnx", [node("Gather", "x", "i", axis=2)], {"x": S}, constants={"i": np.array(3, np.int64)}
    )
    agree(path, drawn(2, *S))


def test_pieces_and_their_order(tmp_path):
    split = helper.make_node("Split", ["x", "sizes"], ["a", "b"], name="split", axis=2)
    path = write(
        tmp_path / "m.onnx",
        [split, node("Concat", "b", "a", "b", axis=-2)],
        {"x": S},
        constants={"sizes": np.array([2, 4], np.int64)},
    )
    agree(path, drawn(2, *S))


@pytest.mark.parametrize(("mode", "place"), [("nearest", "asymmetric"), ("linear", "half_pixel")])
def test_resize(tmp_path, mode, place):
    given = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        given["nearest_mode"] = "floor"
    scales = np.array([1, 1, 2, 3], np.float32)
    path = write(
        tmp_path / "m.onnx", [node("Resize", "x", "", "scales", **given)], {"x": S}, constants={"scales": scales}
    )
    agree(path, drawn(2, *S))


def test_where_and_comparisons(tmp_path):
    nodes = [node("Less", "x", "c", out="t"), node("Where", "t", "x", "z")]
    path = write(tmp_path / "m.onnx", nodes, {"x": S, "z": S}, constants={"c": np.array(0.25, np.float32)})
    agree(path, drawn(2, *S), drawn(2, *S, seed=1))


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


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceSum", "x", "zero")],
        [node("Expand", "x", "more")],
        [node("Squeeze", "x", "zero")],
        [node("Concat", "x", "x", axis=0)],
        [node("Softmax", "x", axis=0)],
        [node("NonZero", "x")],
        [node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2])],
        [node("TopK", "x", "axis")],
        [node("CumSum", "x", "first")],
        [node("Einsum", "x", "x", equation="bijk,ajik->bijk")],
        [node("Pad", "x", "sample")],
        [node("Add", "x", "each_sample")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_what_works_on_samples_or_has_no_layer_is_refused_by_name(tmp_path, nodes):
    constants = {
        "zero": np.array([0]),
        "more": np.array([1, 2, 3, 6, 4]),
        "axis": np.array([1]),
        "first": np.array(0),
        "sample": np.array([1, 0, 0, 0, 0, 0, 0, 0]),
        "each_sample": drawn(2, 3, 6, 4),
    }
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants)
    with pytest.raises(Unsupported, match=rf"node 'the_{nodes[0].op_type}' \({nodes[0].op_type}\) "):
        descend.onnx.load(path)


def branch(name, *nodes, constants=()):
    out = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    return helper.make_graph(
        nodes, name, [], [out], [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    )


@pytest.mark.parametrize("condition", [True, False])
def test_of_a_choice_by_a_constant_the_branch_is_taken(tmp_path, condition):
    one = branch("one", node("MatMul", "x", "w", out="p"), node("Add", "p", "b", out="q"), constants={"b": drawn(3)})
    other = branch("other", node("Neg", "x", out="r"))
    choice = node("If", "is_it", out="chosen", then_branch=one, else_branch=other)
    constants = {"a": np.array(1), "c": np.array(1 if condition else 2), "w": drawn(3, 3, seed=1)}
    nodes = [node("Equal", "a", "c", out="is_it"), choice, node("Relu", "chosen")]
    model = agree(write(tmp_path / "m.onnx", nodes, {"x": (3,)}, constants=constants), drawn(2, 3))
    assert [type(layer).__name__ for layer in model.layers] == [
        "Input",
        "FullyConnected" if condition else "Negative",
        "Relu",
    ]


def test_choices_by_the_data_and_loops_are_refused_by_name(tmp_path):
    body = helper.make_graph(
        [node("Relu", "v", out="w"), node("Identity", "go", out="goes_on")],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9), ("v", FLOAT))],
        [helper.make_tensor_value_info("goes_on", 9, []), helper.make_tensor_value_info("w", FLOAT, None)],
    )
    nodes = [
        node("Greater", "x", "zero", out="t"),
        node(
            "If",
            "t",
            out="a",
            then_branch=branch("one", node("Neg", "x", out="n")),
            else_branch=branch("other", node("Abs", "x", out="m")),
        ),
        node("Loop", "three", "yes", "x", body=body),
    ]
    constants = {"zero": np.float32(0), "three": np.array(3), "yes": np.array(True)}
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (1,)}, constants=constants))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'the_If' (If) chooses between graphs by the data, and a model has the same layers for all",
        "node 'the_Loop' (Loop) repeats a graph of its own, and a model's layers are computed once: unroll it (torch "
        "writes an EmbeddingBag so: take an Embedding and the sum, mean or maximum of its vectors)",
    ]


def test_values_that_nothing_gives_are_named(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Add", "x", "lost")], {"x": S}, outputs=("y", "z"))
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(path)
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'the_Add' (Add) takes 'lost', which nothing before it gives",
        "output 'z' is given by no node",
    ]


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


def test_all_that_cannot_be_had_is_found_in_one_pass(tmp_path):
    nodes = [
        node("NonZero", "x", out="a"),
        node("Relu", "a", out="b"),
        helper.make_node("Fancy", ["x"], ["c"], name="own", domain="com.example"),
        node("Det", "x", out="d"),
        node("Add", "b", "c"),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": S})
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(path)
    assert [problem.partition(": ")[2].split(" has")[0] for problem in caught.value.problems] == [
        "node 'the_NonZero' (NonZero)",
        "node 'own' (Fancy)",
        "node 'the_Det' (Det)",
    ]


def test_sizes_that_the_file_leaves_open_are_asked_for(tmp_path):
    path = tmp_path / "m.onnx"
    write(path, [node("Relu", "x")], {"x": ("h", "w")})
    with pytest.raises(Unsupported, match=r"input 'x' is \(\?, \?, \?\), .* pass fields=\{'x': \(\.\.\.\)\}"):
        descend.onnx.load(path)
    model = descend.onnx.load(path, fields={"x": (4, 5)})
    x = torch.randn(2, 4, 5)
    assert torch.equal(model.to_torch()(x), x.relu())
    with pytest.raises(Unsupported, match="the file has no input 'xx'; did you mean 'x'"):
        descend.onnx.load(path, fields={"xx": (4, 5)})


def external(path, location):
    """A file whose only weight lies elsewhere."""
    write(path, [node("MatMul", "x", "w")], {"x": (2,)}, constants={"w": np.eye(2, dtype=np.float32)})
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    (path.parent / "inside.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    onnx.save(model, path)
    return path


def test_values_outside_the_file_are_read_from_its_folder_alone(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(np.eye(2, dtype=np.float32).tobytes())
    model = descend.onnx.load(external(folder / "m.onnx", "inside.bin"))
    x = torch.randn(3, 2)
    torch.testing.assert_close(model.to_torch()(x), x)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", ""):
        with pytest.raises(StorageError, match=r"tensor 'w' would be read from '.*', outside the file's folder"):
            descend.onnx.load(external(folder / "m.onnx", location))
    with pytest.raises(StorageError, match="tensor 'w' cannot be read"):
        descend.onnx.load(external(folder / "m.onnx", "missing.bin"))


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(StorageError, match="is no file"):
        descend.onnx.load(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\x00\x01 no protobuf")
    with pytest.raises(StorageError, match="no ONNX file"):
        descend.onnx.load(tmp_path / "m.onnx")


def test_a_few_bytes_cannot_ask_for_all_memory(tmp_path):
    nodes = [node("Expand", "c", "sizes", out="d"), node("Add", "x", "d")]
    constants = {"c": np.ones(1, np.float32), "sizes": np.array([10**6, 10**6])}
    with pytest.raises(Unsupported, match=r"node 'the_Expand' .* constant of more than 100,000,000 entries"):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (1, 4)}, constants=constants))


class Attention(nn.Module):
    """Causal attention in two heads, written by hand; `joined` puts samples and heads in one dimension."""

    def __init__(self, joined):
        super().__init__()
        self.qkv, self.out, self.joined = nn.Linear(8, 24), nn.Linear(8, 8), joined

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, 2, 4).transpose(1, 2) for part in self.qkv(x).split(8, 2))
        if self.joined:
            q, k, v = (part.reshape(n * 2, t, 4) for part in (q, k, v))
        mask = torch.full((t, t), -1e9).triu(1)
        share = (q @ k.transpose(-2, -1) / math.sqrt(4) + mask).softmax(-1)
        return self.out((share @ v).view(n, 2, t, 4).transpose(1, 2).reshape(n, t, 8))


class GPT(nn.Module):
    """A small transformer with a table that is its classifier too."""

    def __init__(self, joined):
        super().__init__()
        self.table, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8))
        self.norm1, self.norm2, self.attention = nn.LayerNorm(8), nn.LayerNorm(8), Attention(joined)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.places
        x = x + self.attention(self.norm1(x))
        return self.head(x + self.dense(self.norm2(x)))


class Residual(nn.Module):
    """Two convolutions with batch norm, a shortcut and a classifier."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.an, self.bn, self.short = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 1)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        y = torch.relu(self.bn(self.b(torch.relu(self.an(self.a(x))))) + self.short(x))
        return self.out(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Recurrent(nn.Module):
    """Two layers of gated recurrent units, of which the outputs and the last states count."""

    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.GRU(4, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        y, last = self.layers(x)
        return self.out(y.tanh()) + last[-1].sum(1).view(-1, 1, 1)


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.LeakyReLU(0.1),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, groups=4),
    nn.SiLU(),
    nn.AvgPool2d(2, 1),
    nn.GroupNorm(2, 8),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 7),
    nn.LogSoftmax(1),
)
NETWORKS = {
    "MLP": (nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.BatchNorm1d(20), nn.Linear(20, 3), nn.Softmax(1)), (10,)),
    "convolutions": (CONVOLUTIONS, (3, 28, 28)),
    "residual": (Residual(), (3, 16, 16)),
    "GPT": (GPT(joined=False), None),
    "GPT, heads joined": (GPT(joined=True), None),
    "GRU": (Recurrent(), (5, 4)),
    "torch's encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), (5, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore")
def test_torch_modules_come_in_through_torchs_own_exporter(tmp_path, name, dynamo):
    if dynamo:
        pytest.importorskip("onnxscript")
    module, shape = NETWORKS[name]
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(11, (2, 5), generator=draw) if shape is None else torch.randn(2, *shape, generator=draw)
    more = torch.cat([x, x.flip(0), x])
    module.eval()
    path = str(tmp_path / "net.onnx")
    free = (
        {"dynamic_shapes": ({0: torch.export.Dim("n", min=1, max=64)},)}
        if dynamo
        else {"dynamic_axes": {"x": {0: "n"}}}
    )
    torch.onnx.export(module, (x,), path, dynamo=dynamo, input_names=["x"], output_names=["y"], **free)
    loaded = descend.onnx.load(path)
    got = loaded.to_torch().eval()(more)
    torch.testing.assert_close(got, module(more), rtol=1e-5, atol=1e-5)


class LastState(nn.Module):
    """A network that goes both ways, of which the last cell states alone are taken."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)

    def forward(self, x):
        return torch.cat([*self.lstm(x)[1][1]], -1)


class ClassToken(nn.Module):
    """Attention with a mask over a token of its own and what is given, with heads that are unbound from one product."""

    def __init__(self):
        super().__init__()
        self.token, self.qkv = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 24)
        self.register_buffer("mask", torch.tensor([False, False, True, False, True, False]))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)).masked_fill(self.mask.expand(len(x), 1, 1, 6), -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(-1, 6, 8)[:, 0]


class Pairs(nn.Module):
    """Products of pairs of rows, picked by two lists of places."""

    def forward(self, x):
        return (x @ x.transpose(1, 2))[:, [1, 2, 4], [0, 0, 3]]


FIXED = {
    "torch's encoder": NETWORKS["torch's encoder"][0],
    "last state": LastState(),
    "class token": ClassToken(),
    "pairs": Pairs(),
}


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.filterwarnings("ignore")
def test_a_file_for_a_fixed_number_of_samples_takes_any(tmp_path, name, samples):
    """5 is also the length of a sequence, and 2 the number of heads and of directions."""
    module, shape = FIXED[name], (5, 8)
    draw = torch.Generator().manual_seed(0)
    x, path = torch.randn(samples, *shape, generator=draw), str(tmp_path / "net.onnx")
    torch.onnx.export(module.eval(), (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
    more = torch.randn(3, *shape, generator=draw)
    got = descend.onnx.load(path).to_torch().eval()(more)
    torch.testing.assert_close(got, module(more), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alike", [True, False])
def test_a_constant_for_a_fixed_number_of_samples_says_the_same_of_all(tmp_path, alike):
    constant = np.stack([drawn(3), drawn(3, seed=0 if alike else 1)])
    path = write(tmp_path / "m.onnx", [node("Add", "x", "c")], {"x": (3,)}, constants={"c": constant})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, path)
    if alike:
        agree(path, drawn(2, 3, seed=2))
        return
    with pytest.raises(
        Unsupported, match=r"node 'the_Add' \(Add\) takes a constant that is another one for each sample"
    ):
        descend.onnx.load(path)


CLASSIFIERS = {
    "Gemm": [node("Flatten", "e", out="row"), node("Gemm", "row", "table", transB=1)],
    "MatMul": [node("Transpose", "table", out="t", perm=[1, 0]), node("MatMul", "e", "t")],
}


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_table_that_is_a_classifier_too_stays_one_weights_object(tmp_path, classifier):
    nodes = [node("Gather", "table", "x", out="e"), *CLASSIFIERS[classifier]]
    path = tmp_path / "m.onnx"
    write(path, nodes, {"x": (1,)}, constants={"table": drawn(7, 3)})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    loaded = agree(path, np.array([[0], [6], [2]]))
    assert [one.name for one in loaded.weights] == ["table"]
    module = loaded.to_torch()
    module(torch.tensor([[3]])).sum().backward()
    assert (module.table.grad != 0).all()  # as a classifier for every row, as a table for row 3 too


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gru_goes_out_and_comes_in_again(tmp_path, layers):
    x = descend.Input(data_field="x", name="x")
    start = descend.Reshape(descend.Input(data_field="h", name="h"), dims=[layers, 3])
    y = descend.GRU(x, start, hidden_size=3, num_layers=layers, name="y")
    model, fields = descend.Model(layers=[y]), {"x": (5, 4), "h": (3 * layers,)}
    path = descend.onnx.save(model, tmp_path / "net.onnx", fields=fields, outputs=y)
    given = [torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)) for shape in fields.values()]
    want = model.to_torch(fields=fields, outputs=y)(*given)
    loaded = descend.onnx.load(path)
    torch.testing.assert_close(loaded.to_torch()(*given), want, rtol=1e-5, atol=1e-6)
    kinds = [type(layer).__name__ for layer in loaded.layers]
    assert kinds.count("GRU") == layers
    assert all(one.optimizer is None for one in loaded.weights)  # trained, with the default rule


@pytest.mark.parametrize("options", [{}, {"layout": 1}, {"bias": False}, {"last": True}])
def test_a_gru_is_onnxs(tmp_path, options):
    options = dict(options)
    layout, last = options.get("layout", 0), options.get("last", False)
    constants = {"w": drawn(1, 9, 4), "r": drawn(1, 9, 3, seed=1), "b": drawn(1, 18, seed=2)}
    if options.get("bias") is False:
        del constants["b"]
    turned = [] if layout else [node("Transpose", "x", out="t", perm=[1, 0, 2])]
    outputs = ["", "g"] if last else ["g"]
    gates = ["w", "r", *(["b"] if "b" in constants else [])]
    one = helper.make_node(
        "GRU",
        ["x" if layout else "t", *gates],
        outputs,
        name="gru",
        hidden_size=3,
        linear_before_reset=1,
        layout=layout,
    )
    back = helper.make_node("Transpose", ["g"], ["y"], name="back", perm=[1, 0, 2] if last else [2, 0, 1, 3])
    path = write(
        tmp_path / "m.onnx",
        [*turned, one, back if not layout else node("Relu", "g")],
        {"x": (5, 4)},
        constants=constants,
    )
    if not layout:
        agree(path, drawn(2, 5, 4))
        return
    wanted = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": drawn(2, 1, 4)})  # onnxruntime has none
    got = descend.onnx.load(path, fields={"x": (1, 4)}).to_torch()(torch.from_numpy(drawn(2, 1, 4)))
    np.testing.assert_allclose(got.detach().numpy(), wanted[0], rtol=1e-5, atol=1e-6)


def test_out_and_in_again_gives_the_same_numbers_and_can_be_trained(tmp_path):
    x = descend.Input(data_field="samples", name="images")
    network = zoo.small_lenet(x)
    model = descend.Model(objective_function=descend.L2Norm2(network), name="net")
    fields = {"samples": (1, 8, 8)}
    path = descend.onnx.save(model, tmp_path / "net.onnx", fields=fields, outputs=network)
    again = descend.onnx.load(path)
    images = torch.rand(3, 1, 8, 8)
    want = model.to_torch(fields=fields, outputs=network)(images)
    torch.testing.assert_close(again.to_torch()(images), want, rtol=1e-6, atol=1e-7)
    assert {one.name for one in again.weights} == {
        one.name for one in descend.graph.check(model, fields).weights.values()
    }
    labels = descend.Input(data_field="labels", name="labels")
    (end,) = [layer for layer in again.layers if layer.name == "probabilities"]
    accuracy = descend.Metric(descend.CategoricalAccuracy(end, labels), name="accuracy")
    trained = descend.Model(2, objective_function=descend.CrossEntropy(end, labels), metrics=[accuracy])
    rule = descend.SGD(learn_rate=0.05, momentum=0.9)
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    result = descend.run(trainer, trained, descend.zoo.digits(), rule, run_dir=tmp_path / "run")
    assert result.history[-1]["accuracy"] > 0.7
    first = {one.name: one.initializer.array for one in again.weights}
    assert not np.allclose(first["conv1_kernel"], result.weights["conv1_kernel"])


def test_a_loaded_model_has_a_text_that_starts_alike(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Gemm", "x", "w")], {"x": (2,)}, constants={"w": drawn(2, 3)})
    model = descend.onnx.load(path)
    again = descend.from_text(descend.to_text(model))
    x = torch.randn(4, 2)
    torch.testing.assert_close(again.to_torch(fields={"x": (2,)})(x), model.to_torch()(x), rtol=1e-6, atol=1e-7)


def test_a_node_that_cannot_be_had_is_named_with_its_torch_module(tmp_path):
    """As torch's exporter notes it; an EmbeddingBag is written as a list of bags."""
    bag = helper.make_node("SequenceEmpty", [], ["s"], name="n16")
    scope = ": app.Net/deep.tags: torch.nn.modules.sparse.EmbeddingBag/embedding_bag: aten.embedding_bag.padding_idx"
    bag.metadata_props.add(key="namespace", value=scope)
    outside = node("GridSample", "x", "x")
    outside.metadata_props.add(key="namespace", value=": app.Net/grid_sampler: aten.grid_sampler.default")
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(write(tmp_path / "m.onnx", [bag, outside], {"x": (1, 2, 2)}))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'n16' (SequenceEmpty) of EmbeddingBag 'deep.tags' makes a list of tensors, which no layer gives (torch "
        "writes an EmbeddingBag so: take an Embedding and the sum, mean or maximum of its vectors)",
        "node 'the_GridSample' (GridSample) has no layer here: the operator is not known",
    ]
