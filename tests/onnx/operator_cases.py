"""Nodes of every operator that is imported, for each of its versions, and what they compute.

A case is a node of a version: its attributes, and its inputs, of which the first that is called `x` is the data. Where
onnxruntime does not know a version, the node is written out by hand as one of opset 20 (`now`), which it runs.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import descend
from descend.onnx.versions import NEWEST

onnxruntime.set_default_logger_severity(4)
RUN_UP_TO = 22  # the newest opset that onnxruntime is asked for; newer versions of these operators add types alone
TYPES = {
    np.dtype(name): getattr(TensorProto, kind)
    for name, kind in [
        *(("f4", "FLOAT"), ("f8", "DOUBLE"), ("f2", "FLOAT16"), ("?", "BOOL")),
        *(("i1", "INT8"), ("i2", "INT16"), ("i4", "INT32"), ("i8", "INT64"), ("u1", "UINT8")),
    ]
}


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        kind: Its operator.
        inputs: Arrays; None where one is left out.
        attributes: By name.
        data: Which input is the data; the others are constants.
        outputs: How many outputs it has.
        taken: Which of them are looked at; all unless set.
        samples: Which dimension of the data, and of the result, has the samples.
        constant: Whether it is looked at with constants alone, because no layer does it.
        now: The same as a node of opset 20, where onnxruntime does not run this one.
        tolerance: How far results may be apart.
    """

    kind: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    data: tuple[int, ...] = (0,)
    outputs: int = 1
    taken: tuple[int, ...] = ()
    samples: tuple[int, int] = (0, 0)
    constant: bool = False
    now: Any = None
    tolerance: float = 1e-5

    @property
    def looked_at(self) -> tuple[int, ...]:
        """Places of the outputs that the file gives."""
        return self.taken or tuple(range(self.outputs))

    def sizes(self, shape: tuple[int, ...]) -> list[Any]:
        """The sizes of the data as the file has them."""
        return ["N" if place == self.samples[0] else size for place, size in enumerate(shape)]

    def model(self, opset: int, constant: bool = False) -> onnx.ModelProto:
        """A file of this node; with `constant` the data are constants too."""
        names = ["" if one is None else f"i{place}" for place, one in enumerate(self.inputs)]
        outputs = [f"y{place}" for place in range(self.outputs)]
        nodes = [helper.make_node(self.kind, names, outputs, name="node", **self.attributes)]
        data = () if constant else self.data
        infos = [
            helper.make_tensor_value_info(names[i], TYPES[self.inputs[i].dtype], self.sizes(self.inputs[i].shape))
            for i in data
        ]
        held = [
            numpy_helper.from_array(np.asarray(one), names[i])
            for i, one in enumerate(self.inputs)
            if one is not None and i not in data
        ]
        made = [onnx.ValueInfoProto(name=outputs[place]) for place in self.looked_at]
        graph = helper.make_graph(nodes, "net", infos, made, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def by_onnxruntime(case: Case, opset: int) -> list[np.ndarray]:
    """What a case computes.

    Raises:
        Exception: onnxruntime does not run it.
    """
    model = case.model(opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [
        np.moveaxis(one, case.samples[1], 0) if one.ndim else one
        for one in session.run(None, {f"i{i}": case.inputs[i] for i in case.data})
    ]


def expected(case: Case, opset: int) -> list[np.ndarray]:
    """What a case computes, by onnxruntime at its own opset or at 20."""
    if case.now is not None:
        return by_onnxruntime(case.now, 20)
    return by_onnxruntime(case, min(opset, RUN_UP_TO))


def by_descend(case: Case, opset: int) -> list[np.ndarray]:
    """What the imported model computes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(case.model(opset), path)
        module = descend.onnx.load(path).to_torch(outputs=[f"y{i}" for i in case.looked_at]).eval()
    with torch.no_grad():
        got = module(
            **{f"i{i}": torch.from_numpy(np.moveaxis(case.inputs[i], case.samples[0], 0).copy()) for i in case.data}
        )
    return [one.numpy() for one in (got if isinstance(got, tuple) else (got,))]


def folded_by_descend(case: Case, opset: int) -> np.ndarray:
    """What is computed of constants alone, all entries in a row."""
    model = case.model(opset, constant=True)
    size = sum(one.size for one in expected(case, opset))
    flat = []
    shape = numpy_helper.from_array(np.array([-1]), "shape")
    for place in case.looked_at:
        to = "FLOAT" if opset < 6 else TensorProto.FLOAT
        model.graph.node.append(helper.make_node("Cast", [f"y{place}"], [f"f{place}"], to=to))
        own = {"shape": [-1]} if opset < 5 else {}
        inputs = [f"f{place}"] if opset < 5 else [f"f{place}", "shape"]
        model.graph.node.append(helper.make_node("Reshape", inputs, [f"r{place}"], **own))
        flat.append(f"r{place}")
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("Concat", flat, ["row"], axis=0))
    own = {"broadcast": 1} if opset < 7 else {}
    model.graph.node.append(helper.make_node("Add", ["data", "row"], ["out"], **own))
    model.graph.input.append(helper.make_tensor_value_info("data", TensorProto.FLOAT, ["N", size]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(model, path)
        module = descend.onnx.load(path).to_torch().eval()
    with torch.no_grad():
        return module(torch.zeros(1, size)).numpy()[0]


def same(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-5) -> bool:
    """Whether results are the same, in whatever format they come."""
    if want.ndim == 1 and got.shape == (*want.shape, 1):
        got = got[:, 0]
    if got.shape != want.shape:
        return False
    return np.allclose(got.astype("f8"), want.astype("f8"), rtol=tolerance, atol=tolerance, equal_nan=True)


def drawn(*shape: int, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    """Random numbers, or integers from -9 to 9."""
    draw = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return draw.normal(size=shape).astype(dtype)
    if dtype == "?":
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.integers(0 if dtype == "u1" else -9, 10, shape).astype(dtype)


X = drawn(2, 3, 4)
IMAGE = drawn(2, 4, 6, 5)
TWO = drawn(2, 4, seed=1)
INTS = drawn(2, 3, 4, dtype="i8")
INT32 = drawn(2, 3, 4, dtype="i4")
POSITIVE = np.abs(X) + 0.1


def ints(*values: int) -> np.ndarray:
    """A list of integers."""
    return np.array(values, np.int64)


def number(value: float) -> np.ndarray:
    """A float."""
    return np.array(value, np.float32)


def with_hint(since: int, *cases: Case) -> list[Case]:
    """In opset 1 many nodes have consumed_inputs, which says nothing."""
    if since != 1:
        return list(cases)
    return [replace(one, attributes={**one.attributes, "consumed_inputs": [0]}, now=one.now or one) for one in cases]


_INSIDE = {"Acos": np.tanh(X), "Asin": np.tanh(X), "Atanh": np.tanh(X), "Acosh": POSITIVE + 1}
_INSIDE |= {"Log": POSITIVE, "Sqrt": POSITIVE, "Tan": np.tanh(X), "Not": X > 0}


def _words(text: str) -> list[str]:
    return text.split()


HINTED = _words("""
    Abs Ceil Elu Exp Floor HardSigmoid LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Sqrt Tanh
""")
ONE = _words("""
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf HardSwish IsNaN Mish Not Round Sign Sin Sinh Softplus
""")
ONE += ["Softsign", "Tan", *HINTED]
MOVES = _words("""
    Reshape Flatten Transpose Squeeze Unsqueeze Concat Slice Split Tile Expand Identity Where Gather GatherElements
    ScatterElements Trilu CumSum DepthToSpace SpaceToDepth
""")
OLD_ONLY = 7  # the first opset that onnxruntime runs in general
PAIRS = ["Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "And", "Or", "Xor"]
REDUCED = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


def one_input(kind: str, since: int) -> list[Case]:
    """Operators of one tensor."""
    x = _INSIDE.get(kind, X)
    cases = [Case(kind, (x,))]
    cases += {
        "Elu": [Case(kind, (x,), {"alpha": 0.5})],
        "LeakyRelu": [Case(kind, (x,), {"alpha": 0.3})],
        "HardSigmoid": [Case(kind, (x,), {"alpha": 0.3, "beta": 0.4})],
        "Selu": [Case(kind, (x,), {"alpha": 1.5, "gamma": 0.7})],
        "IsNaN": [Case(kind, (np.array([[np.nan, 1], [np.inf, 0]], "f4"),))],
    }.get(kind, [])
    if kind == "Selu" and since == 1:
        cases[0] = replace(cases[0], now=Case(kind, (x,), {"alpha": 1.6732, "gamma": 1.0507}))
    if kind in ("Abs", "Neg", "Sign") and since >= 6:
        cases += [Case(kind, (INTS,)), Case(kind, (INT32,))]
    if kind == "Relu" and since >= 14:
        cases += [Case(kind, (INT32,))]
    if since < 6 and kind not in HINTED:
        cases = [replace(one, now=one.now or one) for one in cases]
    return with_hint(since, *cases) if kind in HINTED else cases


def two_inputs(kind: str, since: int) -> list[Case]:
    """Operators of two tensors: how they are laid over each other, and what they do with integers."""
    a, b = (X > 0, TWO > 0) if kind in ("And", "Or", "Xor") else (X, TWO)
    if kind in ("Equal", "Less", "Greater") or (kind == "Equal" and since < 11):
        a, b = INTS, INTS[0, 0]
        b = np.broadcast_to(b, (4,)).copy()
    elif kind in ("Pow", "Div"):
        a, b = POSITIVE, np.abs(TWO) + 0.5
    b = b.reshape(-1)[:4]
    same_shape = np.broadcast_to(b, a.shape[1:]).copy()
    if since < 7:
        column = b[:3].copy()
        cases = [
            Case(kind, (a, a), data=(0, 1), now=Case(kind, (a, a), data=(0, 1))),
            Case(kind, (a, b), {"broadcast": 1}, now=Case(kind, (a, b))),
            Case(kind, (a, column), {"broadcast": 1, "axis": 1}, now=Case(kind, (a, column[:, None]))),
            Case(kind, (a, same_shape), {"broadcast": 1, "axis": 1}, now=Case(kind, (a, same_shape))),
            Case(kind, (a, b[:1]), {"broadcast": 1}, now=Case(kind, (a, b[:1]))),
        ]
        if kind in ("Less", "Greater"):
            cases = [_as_floats(one) for one in cases]
        return with_hint(since, *cases) if kind in ("Add", "Sub", "Mul", "Div") else cases
    cases = [Case(kind, (a, b)), Case(kind, (b, a), data=(1,)), Case(kind, (a, b[:3, None].copy()))]
    cases += [Case(kind, (a, b[:1])), Case(kind, (a, a), data=(0, 1)), Case(kind, (a[:1], a), data=(1,))]
    if kind in ("Less", "Greater") and since < 9:
        return [_as_floats(one) for one in cases]
    if kind in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater"):
        large = np.array([[2**24 + 1, -(2**24) - 1, 2**40 + 3, 7]], np.int64)
        close = np.array([[2**24, -(2**24), 2**40 + 2, -2]], np.int64)
        cases += [Case(kind, (large, close)), Case(kind, (large, close), data=(0, 1))]
        odd = np.where(INT32 == 0, 1, INT32)
        cases += [Case(kind, (INT32, odd[0])), Case(kind, (odd, np.array(-2, np.int32)))]
    if kind in ("Add", "Mul", "Sub"):
        most = np.array([[2**31 - 1, -(2**31)]], np.int32)
        cases.append(Case(kind, (most, most[:, ::-1].copy()), data=(0, 1)))
    if kind == "Pow" and since >= 12:
        cases += [
            Case(kind, (INTS, ints(0, 1, 2, 3))),
            Case(kind, (INT32, np.array(2, "f4"))),
            Case(kind, (a, ints(2))),
        ]
    return cases


def _as_floats(case: Case) -> Case:
    inputs = tuple(one.astype("f4") for one in case.inputs)
    return replace(case, inputs=inputs, now=None if case.now is None else _as_floats(case.now))


def several(kind: str, since: int) -> list[Case]:
    """Max, Min, Sum, Mean."""
    three = (X, X[::-1].copy(), drawn(2, 3, 4, seed=2))
    cases = [Case(kind, three, data=(0, 1, 2)), Case(kind, three[:2], data=(0, 1))]
    if since < 6:
        return with_hint(since, *cases)
    if since >= 8:
        cases += [Case(kind, (X, TWO[0])), Case(kind, (X, TWO[0], number(0.25)))]
    if kind in ("Max", "Min") and since >= 12:
        cases += [Case(kind, (INTS, INTS[0])), Case(kind, (INT32, np.array(3, np.int32)))]
    return cases


def reductions(kind: str, since: int) -> list[Case]:
    """Over axes that are an attribute or an input."""
    x = POSITIVE if "Log" in kind else X
    as_input = since >= (13 if kind == "ReduceSum" else 18)
    cases = []
    for axes in ([1], [2], [-1], [1, 2], [1, -1]):
        for keep in ({}, {"keepdims": 0}):
            if since < 11 and min(axes) < 0:
                continue
            cases += [Case(kind, (x, ints(*axes)), keep) if as_input else Case(kind, (x,), {"axes": axes, **keep})]
    if kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        for data in (INT32, *((INTS,) if kind != "ReduceMean" and kind != "ReduceProd" else ())):
            cases.append(Case(kind, (data, ints(2))) if as_input else Case(kind, (data,), {"axes": [2]}))
    return cases


def extremum(kind: str, since: int) -> list[Case]:
    """The places of the largest and smallest."""
    cases = [Case(kind, (X,), {"axis": axis, **keep}) for axis in (1, 2) for keep in ({}, {"keepdims": 0})]
    ties = np.array([[3, 1, 3, 1], [0, 0, 0, 0]], "f4")
    cases += [Case(kind, (ties,), {"axis": 1}), Case(kind, (INT32,), {"axis": 2})]
    if since >= 11:
        cases += [Case(kind, (X,), {"axis": -1})]
    if since >= 12:
        cases += [Case(kind, (ties,), {"axis": 1, "select_last_index": 1})]
    return cases


def rows(kind: str, since: int) -> list[Case]:
    """Softmax and LogSoftmax: before opset 13 over all dimensions from the axis on."""
    cases = [Case(kind, (X,), {"axis": 1}), Case(kind, (X,), {"axis": 2}), Case(kind, (IMAGE,), {"axis": 1})]
    cases += [Case(kind, (X,)), Case(kind, (IMAGE,)), Case(kind, (TWO,)), Case(kind, (IMAGE,), {"axis": 2})]
    return cases + ([Case(kind, (IMAGE,), {"axis": -1}), Case(kind, (IMAGE,), {"axis": -2})] if since >= 11 else [])


def pools(kind: str, since: int) -> list[Case]:
    """Windows and padding."""
    shapes = [{"kernel_shape": [2, 3]}, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}]
    shapes += [{"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": auto} for auto in ("SAME_UPPER", "SAME_LOWER")]
    shapes += [{"kernel_shape": [3, 3], "auto_pad": "VALID"}]
    if kind == "AveragePool" and since >= 7:
        shapes += [{**one, "count_include_pad": 1} for one in shapes[1:4]]
    if since >= 10:
        # Behind the padding onnxruntime counts entries that the standard does not, so these have none behind.
        ceil = [{"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}]
        if kind == "MaxPool":
            ceil += [{"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}]
        shapes += ceil
    if kind == "MaxPool" and since >= 8:
        shapes += [{"kernel_shape": [2, 2], "storage_order": 1}]
    cases = [Case(kind, (IMAGE,), one) for one in shapes]
    cases = [*cases, Case(kind, (drawn(2, 3, 7),), {"kernel_shape": [3]})]
    return [replace(one, now=one) for one in cases] if since < 7 else cases


def convolutions(kind: str, since: int) -> list[Case]:
    """Conv and ConvTranspose."""
    if kind == "Conv":
        w, b = drawn(6, 2, 3, 2, seed=3), drawn(6, seed=4)
        each = [{"group": 2}, {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}]
        each += [{"group": 2, "auto_pad": auto} for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")]
        each += [{"group": 2, "dilations": [2, 1], "strides": [1, 2]}]
        return [Case(kind, (IMAGE, w, *bias), one, tolerance=1e-4) for one in each for bias in ((), (b,))]
    w, b = drawn(4, 3, 3, 2, seed=3), drawn(3, seed=4)
    each = [{}, {"strides": [2, 3]}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"dilations": [2, 1]}]
    each += [{"strides": [2, 2], "output_padding": [1, 1]}, {"strides": [2, 2], "pads": [1, 0, 0, 1]}]
    each += [{"strides": [2, 3], "output_shape": [12, 14]}, {"strides": [2, 2], "output_shape": [11, 9]}]
    each += [{"strides": [2, 2], "output_shape": [14, 11], "pads": [1, 1, 1, 1]}, {"output_shape": [8, 6]}]
    each += [{"strides": [3, 2], "output_shape": [20, 11]}]
    each += [{"strides": [2, 2], "auto_pad": auto} for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")]
    each += [{"strides": [2, 2], "output_shape": [12, 10], "auto_pad": auto} for auto in ("SAME_UPPER", "SAME_LOWER")]
    each += [{"strides": [4, 3], "auto_pad": auto} for auto in ("SAME_UPPER", "SAME_LOWER")]
    return [Case(kind, (IMAGE, w, *bias), one, tolerance=1e-4) for one in each for bias in ((), (b,))]


def normalizations(kind: str, since: int) -> list[Case]:
    """BatchNormalization, InstanceNormalization and LayerNormalization."""
    s, b, m, v = (drawn(4, seed=i) for i in range(4))
    if kind == "BatchNormalization":
        inputs = (IMAGE, s, b, m, v**2 + 0.5)
        now = Case(kind, inputs, {"epsilon": 1e-3}, tolerance=1e-4)
        own = {"is_test": 1} if since < 7 else {}
        own |= {"consumed_inputs": [0, 0, 0, 1, 1]} if since == 1 else {}
        own |= {"spatial": 1} if since < 9 else {}
        return [Case(kind, inputs, {"epsilon": 1e-3, **own}, now=now if since < 9 else None, tolerance=1e-4)]
    if kind == "InstanceNormalization":
        return with_hint(since, Case(kind, (IMAGE, s, b), {"epsilon": 1e-2}, tolerance=1e-4))
    if kind == "LRN":
        return [Case(kind, (IMAGE,), {"size": size, "alpha": 0.3, "bias": 2.0}) for size in (1, 3, 5)]
    return [
        Case(kind, (X, drawn(4, seed=5), drawn(4, seed=6)), {"epsilon": 1e-2}, tolerance=1e-4),
        Case(kind, (X, drawn(3, 4, seed=5)), {"axis": 1}, tolerance=1e-4),
    ]


def casts(kind: str, since: int) -> list[Case]:
    """Between all types that layers compute."""
    floats = np.array([[1.5, -2.7, 300.0, 70000.0, 0.0, -129.0, 3e9, 1e-9]], "f4")
    integers = np.array([[1, -2, 300, 70000, 2**24 + 1, 2**31, -(2**40), 0]], np.int64)
    wanted = ["FLOAT", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL"]
    cases = []
    for word in wanted:
        to = word if since == 1 else getattr(TensorProto, word)
        for x in (floats, integers, floats.astype("f8"), integers.astype("i4")):
            now = Case(kind, (x,), {"to": getattr(TensorProto, word)}) if since == 1 else None
            cases.append(Case(kind, (x,), {"to": to}, now=now, tolerance=1e-6))
    return cases


def resizes(kind: str, since: int) -> list[Case]:
    """Upsample and Resize."""
    scales = np.array([1, 1, 2, 3], np.float32)
    small = np.array([1, 1, 0.5, 0.6], np.float32)
    half = np.array([1, 1, 0.5, 2], np.float32)
    if kind == "Upsample":
        if since == 1:
            return [
                Case(kind, (IMAGE,), {"height_scale": 2.0, "width_scale": 3.0}, now=_resize_of(scales, b"nearest")),
                Case(
                    kind,
                    (IMAGE,),
                    {"height_scale": 2.0, "width_scale": 3.0, "mode": "bilinear"},
                    now=_resize_of(scales, b"linear"),
                ),
            ]
        if since == 7:
            return [Case(kind, (IMAGE,), {"scales": scales.tolist(), **one}) for one in ({}, {"mode": "linear"})]
        return [Case(kind, (IMAGE, scales), one) for one in ({}, {"mode": "linear"}, {"mode": "nearest"})]
    if since == 10:
        return [Case(kind, (IMAGE, one), {"mode": m}) for one in (scales, half) for m in ("nearest", "linear")]
    empty = np.zeros(0, np.float32)
    before = (empty if since < 13 else None,)
    places = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    cases = []
    for place in places:
        for one in (scales, small):
            for mode in ("nearest", "linear"):
                own = {"mode": mode, "coordinate_transformation_mode": place}
                cases.append(Case(kind, (IMAGE, *before, one), own, tolerance=1e-4))
    cases += [
        Case(kind, (IMAGE, *before, scales), {"mode": "nearest", "nearest_mode": nearest})
        for nearest in ("floor", "ceil", "round_prefer_ceil")
    ]
    cases.append(Case(kind, (IMAGE, *before, scales), {"mode": "cubic", "cubic_coeff_a": -0.5}, tolerance=1e-4))
    if since >= 18:
        cases.append(Case(kind, (IMAGE, None, scales[2:]), {"mode": "nearest", "axes": [2, 3]}))
    return cases


def _resize_of(scales: np.ndarray, mode: bytes) -> Case:
    own = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return Case("Resize", (IMAGE, None, scales), own)


def recurrent(kind: str, since: int) -> list[Case]:
    """Recurrent nodes, which have the length before the samples."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
    own = {"hidden_size": 3} | ({"linear_before_reset": 1} if kind == "GRU" else {})
    weights = (drawn(1, 3 * gates, 4, seed=1), drawn(1, 3 * gates, 3, seed=2), drawn(1, 6 * gates, seed=3))
    return [Case(kind, (drawn(5, 2, 4), *weights), own, samples=(1, 2))]


def shapes(kind: str, since: int) -> list[Case]:
    """Moves of entries, of fractions and integers."""
    each: list[Case] = []
    for x in (X, INTS):
        match kind:
            case "Reshape":
                if since == 1:
                    each.append(Case(kind, (x,), {"shape": [0, -1]}, now=Case(kind, (x, ints(0, -1)))))
                else:
                    each += [Case(kind, (x, ints(*to))) for to in ((0, -1), (-1, 4, 3), (0, 2, -1), (0, 2, 2, -1))]
            case "Flatten":
                each.append(Case(kind, (x,)))
                each.append(Case(kind, (x,), {"axis": 1}))
                if since >= 11:
                    each.append(Case(kind, (x,), {"axis": -2}))
            case "Transpose":
                each.append(Case(kind, (x,), {"perm": [0, 2, 1]}))
            case "Squeeze":
                thin = x.reshape(2, 3, 1, 4)
                each.append(Case(kind, (thin,), {"axes": [2]}) if since < 13 else Case(kind, (thin, ints(2))))
                if since >= 11:
                    each.append(Case(kind, (thin,), {"axes": [-2]}) if since < 13 else Case(kind, (thin, ints(-2))))
            case "Unsqueeze":
                axes = [1, 3] if since < 11 else [1, -1]
                each.append(Case(kind, (x,), {"axes": axes}) if since < 13 else Case(kind, (x, ints(*axes))))
            case "Concat":
                own = {} if since == 1 else {"axis": 1}
                each.append(Case(kind, (x, x[:, ::-1].copy()), own, data=(0, 1)))
                each.append(Case(kind, (x, x), {"axis": 2}, data=(0, 1)))
                if since == 1:
                    each = [replace(one, now=replace(one, attributes={"axis": 1, **one.attributes})) for one in each]
            case "Slice":
                for starts, ends, axes in (([1], [3], [1]), ([0, -2], [2, 2**31 - 1], [1, 2]), ([-3], [-1], [2])):
                    if since == 1:
                        each.append(Case(kind, (x,), {"starts": starts, "ends": ends, "axes": axes}))
                    else:
                        each.append(Case(kind, (x, ints(*starts), ints(*ends), ints(*axes))))
                        each.append(Case(kind, (x, ints(3), ints(-9), ints(2), ints(-2))))
            case "Split":
                given = {"split": [1, 3]} if since < 13 else {}
                sizes = (ints(1, 3),) if since >= 13 else ()
                each.append(Case(kind, (x, *sizes), {"axis": 2, **given}, outputs=2))
                each.append(Case(kind, (x,), {"axis": 2, **({"num_outputs": 2} if since >= 18 else {})}, outputs=2))
                if since >= 18:
                    each.append(Case(kind, (IMAGE,), {"axis": 3, "num_outputs": 3}, outputs=3))
                    each.append(Case(kind, (IMAGE,), {"axis": 3, "num_outputs": 3}, outputs=3, taken=(1,)))
            case "Tile":
                if since == 1:
                    now = Case(kind, (x, ints(1, 1, 3)))
                    each.append(Case(kind, (x, number(3), number(2)), now=now))
                else:
                    each.append(Case(kind, (x, ints(1, 2, 3))))
            case "Expand":
                each.append(Case(kind, (x[:, :1], ints(1, 3, 4))))
            case "Identity":
                each.append(Case(kind, (x,)))
            case "Where":
                each.append(Case(kind, (X > 0, x, x[:1, ::-1].copy()), data=(0, 1)))
                each.append(Case(kind, (X > 0, x, x[:, ::-1].copy()), data=(0, 1, 2)))
            case "Gather":
                each.append(Case(kind, (x, ints(0, -1, 2)), {"axis": 1}))
                each.append(Case(kind, (x[0], np.array([[0, 2], [1, 0]])), data=(1,)))
                each.append(Case(kind, (x, np.array([[0, 2], [1, 0]])), {"axis": 2}))
                if since >= 11:
                    each.append(Case(kind, (x[0], np.array([[0, -1], [-3, 0]])), data=(1,)))
                    each.append(Case(kind, (x[0, 0], np.array([[0, -1], [-4, 0]])), data=(1,)))
            case "GatherElements":
                each.append(Case(kind, (x[:, 0], np.array([[0, 2, -1], [1, 0, -4]])), {"axis": 1}, data=(0, 1)))
            case "ScatterElements":
                if since >= 16:
                    inputs = (x[:, 0], np.array([[0, 2, -1], [1, 0, -4]]), x[:, 1, :3].copy())
                    each.append(Case(kind, inputs, {"axis": 1, "reduction": "add"}, data=(0, 1, 2)))
            case "Trilu":
                each += [Case(kind, (x, np.array(k)), {"upper": upper}) for k in (-1, 0, 1) for upper in (0, 1)]
            case "CumSum":
                for own in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
                    each += [Case(kind, (x, np.array(axis)), own) for axis in (1, 2, -1)]
            case "DepthToSpace" | "SpaceToDepth":
                image = drawn(2, 4, 4, 6, dtype="f4" if x is X or kind else "i8")
                modes = [{"mode": "CRD"}, {"mode": "DCR"}] if kind == "DepthToSpace" and since >= 11 else [{}]
                each += [Case(kind, (image,), {"blocksize": 2, **mode}) for mode in modes]
    if since < OLD_ONLY:
        each = [one if one.now is not None else replace(one, now=_now(one)) for one in each]
    return each


def _now(case: Case) -> Case | None:
    """A node of opset 20 for one whose lists are attributes."""
    moved = {"Squeeze": ["axes"], "Unsqueeze": ["axes"], "Slice": ["starts", "ends", "axes"], "Split": ["split"]}
    names = [name for name in moved.get(case.kind, []) if name in case.attributes]
    left = {name: value for name, value in case.attributes.items() if name not in names}
    lists = [ints(*case.attributes[name]) for name in names]
    if case.kind == "Split" and not names:
        left["num_outputs"] = case.outputs
    return replace(case, inputs=(*case.inputs, *lists), attributes=left)


def others(kind: str, since: int) -> list[Case]:
    """All that is of no family."""
    matrix, bias = drawn(4, 5, seed=1), drawn(5, seed=2)
    match kind:
        case "MatMul":
            return [Case(kind, (X, matrix)), Case(kind, (X, X.swapaxes(1, 2).copy()), data=(0, 1))]
        case "Gemm":
            own = {"broadcast": 1} if since < 7 else {}
            now = Case(kind, (TWO, matrix, bias)) if since < 7 else None
            turned = Case(kind, (TWO, matrix.T.copy(), bias), {"transB": 1, **own})
            cases = [Case(kind, (TWO, matrix, bias), own, now=now), replace(turned, now=now)]
            return cases + ([Case(kind, (TWO, matrix))] if since >= 11 else [])
        case "Einsum":
            return [Case(kind, (X, matrix), {"equation": "nij,jk->nik"})]
        case "Clip":
            if since < 11:
                pairs = [{"min": -0.5, "max": 0.5}, {"min": 0.0}, {"max": 0.25}, {}]
                now = [
                    Case(kind, (X, *(number(one[k]) if k in one else None for k in ("min", "max")))) for one in pairs
                ]
                cases = [Case(kind, (X,), one) for one in pairs]
                if since == 1:
                    cases = [replace(a, now=b) for a, b in zip(cases, now, strict=True)]
                return with_hint(since, *cases)
            cases = [Case(kind, (X, number(-0.5), number(0.5))), Case(kind, (X, number(0))), Case(kind, (X,))]
            cases += [Case(kind, (X, None, number(0.25))), Case(kind, (X, number(0.5), number(-0.5)))]
            if since >= 12:
                cases += [Case(kind, (INTS, np.array(-3), np.array(4))), Case(kind, (INTS, None, np.array(4)))]
                cases += [Case(kind, (INT32, np.array(-3, np.int32)))]
            return cases
        case "Pad":
            name, pads = ("paddings" if since == 1 else "pads"), [0, 1, 0, 0, 0, 2]
            modes = [{}, {"mode": "reflect"}, {"mode": "edge"}]
            if since < 11:
                cases = [Case(kind, (X,), {name: pads, "value": 0.5, **mode}) for mode in modes]
                now = [Case(kind, (X, ints(*pads), number(0.5)), mode) for mode in modes]
                return [replace(a, now=b if since == 1 else None) for a, b in zip(cases, now, strict=True)]
            cases = [Case(kind, (X, ints(*pads), number(0.5)), mode) for mode in modes]
            cases += [Case(kind, (X, ints(0, 0, -1, 0, 1, -1)))]
            large = INTS + 2**40
            cases += [Case(kind, (large, ints(*pads), np.array(7)))] if since >= 13 else []
            if since >= 18:
                cases += [Case(kind, (X, ints(1, 2), None, ints(-1)))]
            return cases + ([Case(kind, (X, ints(*pads)), {"mode": "wrap"})] if since >= 19 else [])
        case "PRelu":
            channels = drawn(4, seed=7)
            if since < 7:
                now = Case(kind, (IMAGE, channels.reshape(4, 1, 1)))
                single = Case(kind, (IMAGE, channels[:1]), now=Case(kind, (IMAGE, channels[:1])))
                return with_hint(since, Case(kind, (IMAGE, channels), now=now), single)
            slopes = (channels.reshape(4, 1, 1), channels[:1], drawn(5, seed=8), drawn(4, 6, 5, seed=9))
            return [Case(kind, (IMAGE, one)) for one in slopes]
        case "Dropout":
            own = {"is_test": 1} if since < 7 else {}
            own |= {"ratio": 0.25} if since < 12 else {}
            cases = [Case(kind, (X, *((number(0.25),) if since >= 12 else ())), own)]
            return with_hint(since, *(replace(one, now=Case(kind, (X,)) if since < 7 else None) for one in cases))
        case "TopK":
            x = drawn(2, 6)
            if since == 1:
                return [Case(kind, (x,), {"k": 3, "axis": 1}, outputs=2, taken=(0,), now=_largest(x))]
            cases = [_largest(x), replace(_largest(x), inputs=(x, ints(1)), taken=(0, 1))]
            own = {"largest": 0}
            return cases + ([Case(kind, (x, ints(2)), own, outputs=2, taken=(0,))] if since >= 11 else [])
        case "OneHot":
            values = np.array([0, 2.5], np.float32)
            index = np.array([[0, 2, 4]]) if since < 11 else np.array([[0, -1, 4], [7, -5, -6]])
            return [Case(kind, (index, np.array(5), values))]
        case "Celu":
            return [Case(kind, (X,)), Case(kind, (X,), {"alpha": 0.5})]
        case "Gelu":
            return [Case(kind, (X,)), Case(kind, (X,), {"approximate": "tanh"})]
        case "ThresholdedRelu":
            return [Case(kind, (X,)), Case(kind, (X,), {"alpha": 0.3})]
        case "IsInf":
            x = np.array([[np.inf, -np.inf, np.nan, 1]], "f4")
            each = [{}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}]
            return [Case(kind, (x,), own) for own in each]
        case "Mod":
            odd = np.array([[-3, 3, 4, -1]])
            cases = [Case(kind, (X, TWO[0]), {"fmod": 1})]
            for x, by in ((INTS, odd[0]), (INT32, odd[0].astype("i4"))):
                cases += [Case(kind, (x, by)), Case(kind, (x, by), {"fmod": 1})]
            return cases
        case "GreaterOrEqual" | "LessOrEqual":
            large = np.array([[2**24 + 1, 3]])
            return [Case(kind, (X, TWO[0])), Case(kind, (large, np.array([[2**24, 3]])))]
        case "GlobalAveragePool" | "GlobalMaxPool":
            return [Case(kind, (IMAGE,))]
    return [replace(one, constant=True) for one in folded(kind, since)]


def folded(kind: str, since: int) -> list[Case]:
    """Operators that are computed of constants alone."""
    whole, parts = drawn(2, 3, dtype="u1"), drawn(2, 3, seed=1, dtype="u1")
    match kind:
        case "BitShift":
            return [Case(kind, (whole, np.array([1, 2, 0], np.uint8)), {"direction": way}) for way in ("LEFT", "RIGHT")]
        case "BitwiseAnd" | "BitwiseOr" | "BitwiseXor":
            return [Case(kind, (whole, parts)), Case(kind, (INTS, INTS[0]))]
        case "BitwiseNot":
            return [Case(kind, (INTS,))]
        case "CastLike":
            return [Case(kind, (3 * X, np.zeros(1, to))) for to in ("i4", "f8", "f2")]
        case "Compress":
            return [Case(kind, (X, np.array([True, False, True])), {"axis": 1}), Case(kind, (X, np.array([True])))]
        case "DequantizeLinear":
            return [Case(kind, (whole, number(0.5), np.array(3, np.uint8)))]
        case "QuantizeLinear":
            return [Case(kind, (X, number(0.1), np.array(3, np.uint8)))]
        case "EyeLike":
            return [Case(kind, (TWO,)), Case(kind, (TWO,), {"k": 1, "dtype": TensorProto.INT64})]
        case "Hardmax":
            return [Case(kind, (X,), own) for own in ({}, {"axis": 1}, {"axis": 2})]
        case "LpNormalization":
            return [Case(kind, (X,), {"p": p, "axis": 1}) for p in (1, 2)]
        case "MeanVarianceNormalization":
            return [Case(kind, (IMAGE,)), Case(kind, (IMAGE,), {"axes": [2]})]
        case "NonZero":
            return [Case(kind, (INTS,))]
        case "Range":
            return [Case(kind, tuple(map(np.array, three))) for three in ((0, 5, 2), (9, 2, -3))]
        case "ReverseSequence":
            return [Case(kind, (X, ints(1, 3)), {"batch_axis": 0, "time_axis": 1})]
        case "ScatterND":
            return [Case(kind, (X, np.array([[1, 2], [0, 0]]), drawn(2, 4, seed=3)))]
        case "ScatterElements":
            return [Case(kind, (X[0], np.array([[0, 2, 1, 0]]), TWO[:1]))]
        case "GatherND":
            return [Case(kind, (X, np.array([[1, 2], [0, 0]])))]
        case "Unique":
            return [Case(kind, (INTS.reshape(-1),))]
        case "Shape":
            return [Case(kind, (X,)), *([Case(kind, (X,), {"start": 1, "end": -1})] if since >= 15 else [])]
        case "Size":
            return [Case(kind, (X,))]
        case "ConstantOfShape":
            value = numpy_helper.from_array(np.array([7], np.int64))
            return [Case(kind, (ints(2, 3),)), Case(kind, (ints(2, 3),), {"value": value})]
    return []


def _largest(x: np.ndarray) -> Case:
    return Case("TopK", (x, ints(3)), {"axis": 1}, outputs=2, taken=(0,))


FAMILIES = {
    **dict.fromkeys(ONE, one_input),
    **dict.fromkeys(PAIRS, two_inputs),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), several),
    **dict.fromkeys((f"Reduce{name}" for name in REDUCED), reductions),
    **dict.fromkeys(("ArgMax", "ArgMin"), extremum),
    **dict.fromkeys(("Softmax", "LogSoftmax"), rows),
    **dict.fromkeys(("MaxPool", "AveragePool"), pools),
    **dict.fromkeys(("Conv", "ConvTranspose"), convolutions),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN"), normalizations),
    **dict.fromkeys(("Resize", "Upsample"), resizes),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    "Cast": casts,
    **dict.fromkeys(MOVES, shapes),
}


def cases_of(kind: str, since: int) -> list[Case]:
    """Nodes of a version of an operator."""
    found = FAMILIES.get(kind, others)(kind, since)
    return found or [replace(one, constant=True) for one in folded(kind, since)]


def last_opset(kind: str, since: int) -> int:
    """The last set of operators in which a version is the one."""
    return next((o for o in range(since, NEWEST) if _since(kind, o + 1) != since), NEWEST)


def _since(kind: str, opset: int) -> int:
    schema = onnx.defs.get_schema(kind, max_inclusive_version=opset)
    return -1 if schema.deprecated else schema.since_version
