"""Operators on each entry, against onnxruntime."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import descend
from descend.errors import Unsupported
from descend.onnx.graph_importer import importer
from descend.onnx.importers.elementwise import ENTRYWISE, JOINABLE
from tests.onnx.files import agree, agree_in_one_file, case, drawn, node, write

S = (3, 6, 4)
EVERYWHERE = """
    Abs Ceil Cos Erf Exp Floor Neg Relu Round Sigmoid Sign Sin Softplus Softsign Tanh Atan Sinh Cosh Asinh Identity
"""
FRACTIONS = "Acos Asin Atanh Log Sqrt Reciprocal Tan"  # defined, and far from poles, between 0.1 and 0.9


def test_operators_of_one_tensor(tmp_path):
    cases = [case(kind, "x") for kind in EVERYWHERE.split()]
    cases += [case(kind, "z") for kind in FRACTIONS.split()] + [case("Acosh", "w")]
    x, z = drawn(2, *S), np.linspace(0.1, 0.9, 10, dtype=np.float32).reshape(2, 5)
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S, "z": (5,), "w": (5,)}, x, z, 1 + z)


def test_all_operators_that_work_wherever_the_samples_are_have_an_importer():
    assert all(importer(kind) for kind in ENTRYWISE | JOINABLE)


@pytest.mark.parametrize("first", [False, True])
def test_constants_are_broadcast_as_onnx_says(tmp_path, first):
    cases = []
    for shape in [(), (1,), (4,), (6, 1), (3, 1, 1), (1, 3, 6, 4), (1, 1, 1, 4)]:
        constant = (np.abs(drawn(*shape, seed=3)) + 0.5).astype(np.float32)
        names = (constant, "x") if first else ("x", constant)
        cases += [case(kind, *names) for kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, np.abs(drawn(2, *S)) + 0.5)


def test_tensors_are_broadcast_within_a_sample(tmp_path):
    inputs = {"x": S, "same": S, "column": (1, 6, 1), "plane": (3, 1, 4)}
    cases = [case("Add", "x", "same"), case("Add", "x", "column"), case("Sub", "plane", "x")]
    cases.append(case("Sum", "x", "column", "plane"))
    agree_in_one_file(
        tmp_path / "m.onnx", cases, inputs, *(drawn(2, *s, seed=i) for i, s in enumerate(inputs.values()))
    )


def test_comparisons_and_logic(tmp_path):
    """Numbers between −2 and 2, so that half of the pairs are ties; truths come out as 0 and 1."""
    nodes = []
    for kind in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
        nodes += [
            node(kind, "x", "z", out=f"{kind}_truth"),
            node("Cast", f"{kind}_truth", out=kind, to=TensorProto.FLOAT),
        ]
    for kind in ("And", "Or", "Xor"):
        nodes += [
            node(kind, "Less_truth", "Equal_truth" if kind == "Or" else "GreaterOrEqual_truth", out=f"{kind}_truth"),
            node("Cast", f"{kind}_truth", out=kind, to=TensorProto.FLOAT),
        ]
    nodes += [node("Not", "Less_truth", out="not"), node("Cast", "not", out="Not", to=TensorProto.FLOAT)]
    nodes.append(node("Where", "Less_truth", "x", "half", out="Where"))
    outputs = [one.output[0] for one in nodes if one.op_type in ("Cast", "Where")]
    path = write(tmp_path / "m.onnx", nodes, {"x": S, "z": S}, outputs, {"half": np.array(0.5, np.float32)})
    draw = np.random.default_rng(0)
    agree(path, *(draw.integers(-1, 2, (2, *S)).astype(np.float32) for _ in range(2)))


def test_casts_round_towards_zero_and_make_truths(tmp_path):
    nodes = [
        node("Cast", "x", out="i", to=TensorProto.INT64),
        node("Cast", "i", out="whole", to=TensorProto.FLOAT),
        node("Cast", "x", out="b", to=TensorProto.BOOL),
        node("Cast", "b", out="truth", to=TensorProto.FLOAT),
        node("Cast", "x", out="d", to=TensorProto.DOUBLE),
        node("Cast", "d", out="same", to=TensorProto.FLOAT),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (7,)}, ["whole", "truth", "same"])
    agree(path, np.array([[-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.75]], np.float32))


def test_bounds_on_either_side(tmp_path):
    low, high = np.float32(-0.5), np.float32(0.25)
    cases = [case("Clip", "x", low, high), case("Clip", "x", low), case("Clip", "x", "", high), case("Clip", "x")]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_what_is_no_finite_number(tmp_path):
    nodes = [node("IsNaN", "x", out="n"), node("IsInf", "x", out="i")]
    nodes += [node("Cast", name, out=f"{name}_number", to=TensorProto.FLOAT) for name in "ni"]
    path = write(tmp_path / "m.onnx", nodes, {"x": (4,)}, ["n_number", "i_number"])
    agree(path, np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32))


def test_the_sign_of_a_remainder_is_that_of_the_dividend(tmp_path):
    x, z = np.array([[5.5, -5.5, 5.5, -5.5]], np.float32), np.array([[3.0, 3.0, -3.0, -3.0]], np.float32)
    agree(write(tmp_path / "m.onnx", [node("Mod", "x", "z", fmod=1)], {"x": (4,), "z": (4,)}), x, z)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (node("Mod", "x", "x"), "has the sign of the divisor"),
        (node("Trilu", "x"), "takes a triangle of samples"),
        (helper.make_node("Dropout", ["x"], ["y", "mask"], name="the_Dropout"), "hands out its mask"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_other_variants_are_refused_by_name(tmp_path, one, message):
    outputs = [*one.output]
    with pytest.raises(Unsupported, match=rf"node 'the_{one.op_type}' \({one.op_type}\) {message}"):
        descend.onnx.load(write(tmp_path / "m.onnx", [one], {"x": (5,)}, outputs))


def test_dropout_is_a_layer_that_does_nothing_in_evaluation(tmp_path):
    nodes = [node("Dropout", "x", "ratio")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (5,)}, constants={"ratio": np.array(0.25, np.float32)})
    (dropout,) = [layer for layer in agree(path, drawn(2, 5)).layers if isinstance(layer, descend.Dropout)]
    assert dropout.keep_prob == 0.75


def test_triangles(tmp_path):
    cases = [
        case("Trilu", name, *([] if offset is None else [np.array(offset)]), **options)
        for name in ("x", "wide")
        for options in ({}, {"upper": 0})
        for offset in (None, -1, 2)
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (5, 5), "wide": (4, 5)}, drawn(2, 5, 5), drawn(2, 4, 5))


def test_a_constant_that_is_added_to_a_product_is_its_bias(tmp_path):
    nodes = [node("MatMul", "x", "w", out="p"), node("Add", "b", "p")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (6, 5)}, constants={"w": drawn(5, 4), "b": drawn(4, seed=1)})
    model = agree(path, drawn(2, 6, 5))
    assert [type(layer).__name__ for layer in model.layers] == ["Input", "ChannelwiseFullyConnected"]


def test_a_product_that_others_read_too_gets_no_bias(tmp_path):
    nodes = [node("MatMul", "x", "w", out="p"), node("Add", "p", "b", out="q"), node("Mul", "p", "q")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (6, 5)}, constants={"w": drawn(5, 4), "b": drawn(4, seed=1)})
    agree(path, drawn(2, 6, 5))


def test_without_weights_half_precision_ends_where_the_file_says(tmp_path):
    """Else the data would be all that says in which format to compute, and 1000 squared is infinite in theirs."""
    nodes = [node("Cast", "x", out="whole", to=1), node("Mul", "whole", "whole")]
    path = write(tmp_path / "m.onnx", nodes, {"x": (1,)})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, path)
    got = descend.onnx.load(path).to_torch()(torch.tensor([[1000.0]], dtype=torch.float16))
    assert got.tolist() == [[1e6]]
