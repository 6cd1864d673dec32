"""Types of tensors decide what is computed: integers, halves, doubles and truths, against onnxruntime and numpy."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import descend
from descend.errors import DataError, Unsupported
from descend.onnx.values import ConstantValue, Node, output_types, primary_inputs
from tests.onnx.operator_cases import Case, by_descend, by_onnxruntime

TYPES = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "f8": TensorProto.DOUBLE, "?": TensorProto.BOOL}
TYPES |= {"i8": TensorProto.INT64, "i4": TensorProto.INT32, "i1": TensorProto.INT8, "u1": TensorProto.UINT8}


def both(tmp_path, nodes, x, constants=(), opset=17, given=None):
    """What the imported model gives, and what onnxruntime gives."""
    info = helper.make_tensor_value_info("x", TYPES[x.dtype.str[1:].replace("b1", "?")], ["N", *x.shape[1:]])
    held = [numpy_helper.from_array(np.asarray(one), name) for name, one in dict(constants).items()]
    graph = helper.make_graph(nodes, "net", [info], [onnx.ValueInfoProto(name="y")], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    module = descend.onnx.load(path).to_torch(outputs=["y"]).eval()
    with torch.no_grad():
        got = module(torch.from_numpy(x) if given is None else given).numpy()
    options = onnxruntime.SessionOptions()  # whose optimizations leave out casts between formats
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return got, session.run(None, {"x": x})[0]


def n(kind, inputs, out="y", **attributes):
    return helper.make_node(kind, inputs.split(), [out], **attributes)


LARGE = np.array([[7, -7, 2**24 + 1, 2**40 + 1], [3, 5, 2**24, -(2**40) - 3]])


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([n("Div", "x c")], {"c": np.array(2)}),
        ([n("Div", "x c", "h"), n("Mul", "h c", "t"), n("Sub", "x t")], {"c": np.array(2)}),
        ([n("ReduceMean", "x", axes=[1])], {}),
        ([n("Equal", "x c")], {"c": np.array([7, -7, 2**24, 2**40])}),
        ([n("Greater", "x c")], {"c": np.array([7, -7, 2**24, 2**40])}),
        ([n("Add", "x c"), n("Mul", "y c", "z")][:1], {"c": np.array([1, 1, 1, 2**53 + 1])}),
        ([n("Mod", "x c")], {"c": np.array([2, 2, -2, 10**9])}),
        ([n("Max", "x c")], {"c": np.array(2**30 + 1)}),
        ([n("Clip", "x a b")], {"a": np.array(-5), "b": np.array(2**33 + 1)}),
        ([n("CumSum", "x a")], {"a": np.array(1)}),
        ([n("Where", "t x c")], {"t": np.array([True, False, True, False]), "c": np.array(2**40 + 9)}),
        ([n("Pad", "x p c")], {"p": np.array([0, 1, 0, 1]), "c": np.array(2**40 + 5)}),
        ([n("Slice", "x p e p")], {"p": np.array([1]), "e": np.array([4])}),
        ([n("Gather", "x i", axis=1)], {"i": np.array([3, -2, 0])}),
        ([n("ReduceSum", "x a")], {"a": np.array([1])}),
        ([n("Abs", "x", "a"), n("Neg", "a")], {}),
        ([n("Concat", "x x", axis=1)], {}),
        ([n("Cast", "x", to=TensorProto.INT32)], {}),
        ([n("Cast", "x", "f", to=TensorProto.DOUBLE), n("Cast", "f", to=TensorProto.INT64)], {}),
    ],
    ids=lambda value: "-".join(one.op_type for one in value) if isinstance(value, list) else None,
)
def test_integers_are_computed_as_integers(tmp_path, nodes, constants):
    got, want = both(tmp_path, nodes, LARGE, constants)
    np.testing.assert_array_equal(got, want)


def test_integers_wrap_around_in_their_own_format_whatever_the_data_come_in(tmp_path):
    x = np.array([[2**31 - 1, -(2**31), 46341, 7]], np.int32)
    for given in (None, torch.from_numpy(x).long()):
        got, want = both(tmp_path, [n("Mul", "x x")], x, given=given)
        np.testing.assert_array_equal(got, want)
        got, want = both(tmp_path, [n("Add", "x c")], x, {"c": np.array(1, np.int32)}, given=given)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("data", ["f4", "f8", "i8", "i4", "u1"])
@pytest.mark.parametrize("to", sorted(TYPES))
def test_casts_are_those_of_onnxruntime(tmp_path, data, to):
    x = np.array([[0, 1, 100, 200, 70000, 2**24 + 1, 2**31, 3]], "f8")
    x = np.stack([x[0], -x[0] + 0.75]) if data.startswith("f") else x
    with np.errstate(all="ignore"):
        x = x.astype(data)
    got, want = both(tmp_path, [n("Cast", "x", to=TYPES[to])], x)
    np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"))


def test_what_is_no_number_becomes_the_integer_of_onnxruntime(tmp_path):
    x = np.array([[np.nan, np.inf, -np.inf, 3e9]], "f4")
    for to in (TensorProto.INT8, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL):
        got, want = both(tmp_path, [n("Cast", "x", to=to)], x)
        np.testing.assert_array_equal(got.astype(np.int64), want.astype(np.int64))


def test_halves_become_infinite_after_each_node(tmp_path):
    x = np.array([[60000, 1.0009765625, 1e-8]], "f4")
    nodes = [n("Cast", "x", "h", to=TensorProto.FLOAT16), n("Add", "h h", "s"), n("Cast", "s", to=TensorProto.FLOAT)]
    got, _ = both(tmp_path, nodes, x)  # onnxruntime leaves the two casts out between nodes
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, (x.astype("f2") + x.astype("f2")).astype("f4"))
    got, want = both(tmp_path, [n("Mul", "x x")], x.astype("f2"))
    np.testing.assert_array_equal(got.astype("f2"), want)


def test_bfloat16_is_rounded(tmp_path):
    x = np.array([[1.00390625, 3.0e38, 70000.0]], "f4")
    nodes = [n("Cast", "x", "h", to=TensorProto.BFLOAT16), n("Cast", "h", to=TensorProto.FLOAT)]
    got, _ = both(tmp_path, nodes, x)
    np.testing.assert_array_equal(got, torch.from_numpy(x).to(torch.bfloat16).float().numpy())


@pytest.mark.parametrize("kind", ["MatMul", "Add", "Softmax", "Exp"])
def test_doubles_are_computed_in_double(tmp_path, kind):
    x = np.random.default_rng(0).normal(size=(3, 4))
    shape = {"MatMul": (4, 4), "Add": (4,)}.get(kind)
    constants = {"c": np.random.default_rng(1).normal(size=shape)} if shape else {}
    got, want = both(tmp_path, [n(kind, "x c" if constants else "x")], x, constants)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_a_double_between_floats_keeps_its_digits(tmp_path):
    x = np.array([[16777216.0, 3.0]], "f4")
    nodes = [n("Cast", "x", "d", to=TensorProto.DOUBLE), n("Add", "d c", "e"), n("Sub", "e s", "f")]
    nodes.append(n("Cast", "f", to=TensorProto.FLOAT))
    got, want = both(tmp_path, nodes, x, {"c": np.array([1.0, 1.0]), "s": np.array([16777216.0, 0.0])})
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_truths_of_the_data_choose(tmp_path):
    x = np.array([[True, False], [False, False]])
    constants = {"a": np.array([1.5, 2.5], "f4"), "b": np.array([-np.inf, 0], "f4")}
    got, want = both(tmp_path, [n("Not", "x", "t"), n("Where", "t a b")], x, constants)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("node", "x", "message"),
    [
        (n("MatMul", "x c"), "i8", "takes int64, and its layers compute fractions: put a Cast to FLOAT before it"),
        (n("ReduceLogSum", "x", axes=[1]), "i4", "takes int32, and its layers compute fractions"),
        (n("Add", "x x"), "u2", "computes with uint16, which no layer does"),
        (n("Add", "x x"), "u8", "computes with uint64, which no layer does"),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else None,
)
def test_integers_that_no_layer_computes_are_refused_by_name(tmp_path, node, x, message):
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(x)), ["N", 4])
    held = [numpy_helper.from_array(np.ones((4, 4), x), "c")]
    graph = helper.make_graph([node], "net", [info], [onnx.ValueInfoProto(name="y")], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match=rf"\({node.op_type}\) {message}"):
        descend.onnx.load(tmp_path / "m.onnx")


def test_inputs_of_texts_are_refused(tmp_path):
    info = helper.make_tensor_value_info("x", TensorProto.STRING, ["N", 4])
    graph = helper.make_graph([n("Identity", "x")], "net", [info], [onnx.ValueInfoProto(name="y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match="input 'x' holds STRING"):
        descend.onnx.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", ["Div", "Mod"])
def test_a_division_by_zero_names_the_layer(tmp_path, kind):
    case = Case(kind, (np.array([[3, 4]]), np.array([[1, 0]])), data=(0, 1))
    with pytest.raises(DataError, match=r"layer 'y0' .* divides by 0"):
        by_descend(case, 17)


@pytest.mark.parametrize("shape", [(5, 2), (5,), (5, 2, 3)])
def test_rows_of_a_table_count_from_the_end_and_end_the_run_outside(shape):
    table = np.arange(np.prod(shape), dtype="f4").reshape(shape) + 1
    case = Case("Gather", (table, np.array([[0, -1], [4, -5]])), data=(1,))
    np.testing.assert_array_equal(by_descend(case, 20)[0], by_onnxruntime(case, 20)[0])
    for wrong in (5, 9, -6):
        with pytest.raises(DataError, match=rf"node 'node' \(Gather\): an index must be from -5 to 4, got {wrong}$"):
            by_descend(Case("Gather", (table, np.array([[0, wrong]])), data=(1,)), 20)


@pytest.mark.parametrize("kind", ["GatherElements", "ScatterElements"])
def test_places_of_each_sample_are_checked(kind):
    x, more = np.arange(8, dtype="f4").reshape(2, 4), ((np.ones((2, 2), "f4"),) if kind == "ScatterElements" else ())
    own = {"axis": 1, **({"reduction": "add"} if more else {})}
    data = (0, 1, 2) if more else (0, 1)
    case = Case(kind, (x, np.array([[0, -1], [3, -4]]), *more), own, data=data)
    np.testing.assert_array_equal(by_descend(case, 18)[0], by_onnxruntime(case, 18)[0])
    with pytest.raises(DataError, match=rf"node 'node' \({kind}\): an index must be from -4 to 3, got 4"):
        by_descend(Case(kind, (x, np.array([[0, 4], [3, 0]]), *more), own, data=data), 18)


def test_types_of_outputs_come_from_inputs_attributes_and_the_schema():
    def types(kind, *arrays, outputs=1, opset=20, **attributes):
        given = tuple(ConstantValue(np.asarray(one)) for one in arrays)
        node = Node("n", kind, given, attributes, (True,) * outputs)
        return output_types(node, onnx.defs.get_schema(kind, max_inclusive_version=opset))

    whole, part = np.ones(2, np.int32), np.ones(2, np.float64)
    assert types("Add", whole, whole) == (TensorProto.INT32,)
    assert types("Equal", whole, whole) == (TensorProto.BOOL,)
    assert types("Where", np.array([True]), part, part) == (TensorProto.DOUBLE,)
    assert types("TopK", part, np.array([1]), outputs=2) == (TensorProto.DOUBLE, TensorProto.INT64)
    assert types("Split", whole, outputs=3) == (TensorProto.INT32,) * 3
    assert types("Cast", part, to=TensorProto.INT8) == (TensorProto.INT8,)
    assert types("Cast", part, to=b"FLOAT16", opset=1) == (TensorProto.FLOAT16,)
    assert types("ConstantOfShape", np.array([2]), value=np.array([1], np.int32)) == (TensorProto.INT32,)
    assert types("Shape", part) == (TensorProto.INT64,)
    assert types("OneHot", whole, np.array(3), part) == (TensorProto.DOUBLE,)


def test_primary_inputs_are_what_is_computed_with():
    def places(kind, count):
        return primary_inputs(Node("n", kind, (None,) * count, {}, (True,)))

    assert places("Add", 2) == [0, 1]
    assert places("Gather", 2) == [0]
    assert places("Where", 3) == [1, 2]
    assert places("Clip", 3) == [0, 1, 2]
    assert places("Concat", 4) == [0, 1, 2, 3]
    assert places("Equal", 2) == [0, 1]
    assert places("ReduceSum", 2) == [0]
    assert places("Pow", 2) == [0]
    assert places("OneHot", 3) == [2]
    assert places("Pad", 3) == [0, 2]
