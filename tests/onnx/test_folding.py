"""Nodes of constants: what is computed is ONNX's, and it is counted before it is computed."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from descend.onnx.folding import fold, foldable
from descend.onnx.values import Budget, ConstantValue, Node, UnsupportedNode
from tests.onnx.files import drawn

A, B, ROW = drawn(3, 4), drawn(4, 5, seed=1), drawn(4, seed=2)

# Operator, inputs, attributes.
CASES = [
    ("Add", [A, ROW], {}),
    ("Where", [A > 0, A, ROW], {}),
    ("Cast", [A], {"to": TensorProto.DOUBLE}),
    ("Concat", [A, A], {"axis": 0}),
    ("Transpose", [A], {}),
    ("Unsqueeze", [A, np.array([0, -1])], {}),
    ("ReduceSum", [A, np.array([0])], {}),
    ("Expand", [ROW, np.array([2, 3, 4])], {}),
    ("Tile", [A, np.array([2, 3])], {}),
    ("ConstantOfShape", [np.array([2, 5])], {}),
    ("Range", [np.array(2), np.array(9), np.array(2)], {}),
    ("Range", [np.array(9), np.array(2), np.array(-3)], {}),
    ("Pad", [A, np.array([1, 0, 0, 2])], {}),
    ("Pad", [A, np.array([1, 2]), np.array(0.5, np.float32), np.array([-1])], {}),
    ("OneHot", [np.array([0, 2, 1]), np.array(4), np.array([0, 1], np.float32)], {}),
    ("Gather", [A, np.array([[1, 3], [0, -1]])], {"axis": 1}),
    ("GatherND", [A, np.array([[0, 1], [2, 3]])], {}),
    ("GatherElements", [A, np.array([[0, 1], [2, 3], [3, 0]])], {"axis": 1}),
    ("MatMul", [A, B], {}),
    ("MatMul", [A, ROW], {}),
    ("Gemm", [A, B, drawn(5)], {}),
    ("Gemm", [A.T.copy(), B.T.copy()], {"transA": 1, "transB": 1}),
    ("Einsum", [A, B], {"equation": "ij,jk->ki"}),
    ("Einsum", [drawn(2, 3, 4), B], {"equation": "...j,jk->...k"}),
    ("Resize", [drawn(1, 1, 2, 3), None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    ("Resize", [drawn(1, 1, 2, 3), None, None, np.array([1, 1, 5, 4])], {"mode": "nearest"}),
    ("CumSum", [A, np.array(1)], {}),
    ("Trilu", [A], {}),
    ("TopK", [A, np.array([2])], {}),
    ("Split", [A], {"axis": 1, "num_outputs": 2}),
    ("EyeLike", [A], {}),
    ("QuantizeLinear", [A, np.array(0.1, np.float32)], {}),
    ("DequantizeLinear", [np.arange(6, dtype=np.int8), np.array(0.5, np.float32)], {}),
]
OUTPUTS = {"TopK": 2, "Split": 2}


class Recorded(Budget):
    """Keeps what is counted."""

    counted = 0

    def array(self, *sizes, itemsize=8, operations=None):
        super().array(*sizes, itemsize=itemsize, operations=operations)
        self.counted += int(np.prod(sizes)) * itemsize


def folded(kind, inputs, attributes, budget=None):
    names = ["" if one is None else f"i{place}" for place, one in enumerate(inputs)]
    outputs = [f"o{place}" for place in range(OUTPUTS.get(kind, 1))]
    proto = helper.make_node(kind, names, outputs, name="n", **attributes)
    given = tuple(None if one is None else ConstantValue(one) for one in inputs)
    return proto, fold(Node("n", kind, given, attributes, (True,) * len(outputs)), len(outputs), budget or Budget())


@pytest.mark.parametrize(("kind", "inputs", "attributes"), CASES, ids=[f"{i}_{one[0]}" for i, one in enumerate(CASES)])
def test_what_is_computed_is_onnxruntimes_and_was_counted_before(kind, inputs, attributes):
    budget = Recorded()
    proto, got = folded(kind, inputs, attributes, budget)
    given = [numpy_helper.from_array(one, f"i{place}") for place, one in enumerate(inputs) if one is not None]
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), None)
        for name, one in zip(proto.output, got, strict=True)
    ]
    model = helper.make_model(
        helper.make_graph([proto], "g", [], outputs, given),
        opset_imports=[helper.make_operatorsetid("", 20)],
        ir_version=9,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for one, want in zip(got, session.run(None, {}), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)
    assert budget.counted >= sum(one.nbytes for one in got)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [
        ("Expand", [np.ones(1), np.array([10**6, 10**6])], {}),
        ("Tile", [np.ones(1000), np.array([10**9])], {}),
        ("ConstantOfShape", [np.array([2**40])], {}),
        ("Range", [np.array(0), np.array(2**60), np.array(1)], {}),
        ("Range", [np.array(0.0), np.array(1.0), np.array(1e-30)], {}),
        ("Pad", [np.ones(1), np.array([2**40, 0])], {}),
        ("OneHot", [np.zeros(1000, np.int64), np.array(10**9), np.ones(2)], {}),
        ("Gather", [np.ones((2, 10**6)), np.zeros(10**6, np.int64)], {}),
        ("MatMul", [np.ones((10**5, 1)), np.ones((1, 10**5))], {}),
        ("Gemm", [np.ones((10**5, 1)), np.ones((1, 10**5))], {}),
        ("Einsum", [np.ones(10**5), np.ones(10**5)], {"equation": "i,j->ij"}),
        ("Resize", [np.ones((1, 1)), None, None, np.array([10**5, 10**5])], {}),
        ("Add", [np.ones((10**5, 1)), np.ones(10**5)], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_too_large_is_refused_before_it_is_computed(monkeypatch, kind, inputs, attributes):
    monkeypatch.setattr("descend.onnx.folding.ReferenceEvaluator", None)
    with pytest.raises(UnsupportedNode, match=r"constant of more than 100,000,000 entries|take too long"):
        folded(kind, inputs, attributes)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "message"),
    [
        ("Identity", [np.array(["a"])], {}, "computes with texts"),
        ("Abs", [np.ones(2, np.complex64)], {}, "computes with complex numbers"),
        ("Cast", [A], {"to": TensorProto.STRING}, "casts to format 8"),
        ("Cast", [A], {"to": 1000}, "casts to format 1000"),
        ("Range", [np.array(0), np.array(1), np.array(0)], {}, "counts from 0 to 1 in steps of 0"),
        ("Gather", [A, np.array([0])], {"axis": 2}, "takes entries along axis 2 of 2 dimensions"),
        ("Gather", [A, np.array([7])], {}, "cannot be computed: "),
        ("Gemm", [ROW, B], {}, "multiplies what are no matrices"),
        ("Resize", [A], {}, "has neither sizes nor scales"),
        ("Tile", [A], {}, "is given no input 2"),
        ("Gather", [np.ones((1,) * 33), np.array([0])], {}, "a constant of more than 32 dimensions"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_words(kind, inputs, attributes, message):
    with pytest.raises(UnsupportedNode, match=message):
        folded(kind, inputs, attributes)


def test_an_operator_without_a_bound_is_not_computed():
    assert foldable("Add")
    assert not any(foldable(kind) for kind in ("If", "Loop", "RandomNormal", "SequenceAt", "StringConcat", "Fancy"))
