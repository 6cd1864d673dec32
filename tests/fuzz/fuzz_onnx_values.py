"""Random ONNX graphs of opsets 6 to 22 and several types: what is imported computes what onnxruntime computes.

    python tests/fuzz/fuzz_onnx_values.py --count 3000 --seed 0

A graph grows node by node; a node that onnxruntime does not run is left out again. The first dimension of the data is
that of the samples, and constants do not depend on it, as the importer asks for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import descend
import descend.experiment.saved_weights  # as loading does, before anything is timed
from tests.fuzz.harness import main

if TYPE_CHECKING:
    import random

onnxruntime.set_default_logger_severity(4)
SAMPLES = 3
TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-6}


def _words(text: str) -> list[str]:
    return text.split()


ONE = _words("""
    Abs Neg Relu Sigmoid Tanh Exp Ceil Floor Sign Round Erf Softplus Softsign Sin Cos Atan Sqrt Reciprocal
    Not
""")
ONE += _words("""
    LeakyRelu Elu Selu HardSigmoid HardSwish Identity Celu Mish Gelu IsNaN IsInf ThresholdedRelu Dropout
""")
TWO = _words("""
    Add Sub Mul Div Pow Max Min Mod Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor PRelu Sum Mean
""")
REDUCED = _words("""
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp
""")
MOVES = _words("""
    Reshape Flatten Transpose Squeeze Unsqueeze Slice Split Concat Tile Expand Gather Pad
""")
OTHERS = _words("""
    Softmax LogSoftmax Cast Cast Cast Clip ArgMax ArgMin CumSum Where TopK MatMul Gemm OneHot Trilu Constant
""")
OTHERS += _words("""
    MaxPool AveragePool Conv ConvTranspose Upsample Resize LayerNormalization BatchNormalization
""")
OTHERS += _words("""
    GlobalAveragePool DepthToSpace SpaceToDepth LRN InstanceNormalization GatherElements Lookup Hardmax
""")


class Graph:
    """A graph while it grows.

    Attributes:
        values: What onnxruntime gives for each name, in the order in which they came.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.opset = draw.randint(6, 22)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.given = {f"x{place}": self._data() for place in range(draw.choice((1, 1, 2)))}
        self.values: dict[str, np.ndarray] = dict(self.given)

    def _data(self) -> np.ndarray:
        draw = self.draw
        kind = draw.choice(
            ["float32"] * 6 + ["int64", "int32", "int64", "int32", "float64", "float16", "uint8", "bool"]
        )
        shape = draw.choice([(4,), (3, 4), (2, 3, 4), (2, 4, 4), (1,), (1, 3)])
        return self.numbers((SAMPLES, *shape), kind)

    def numbers(self, shape: tuple[int, ...], kind: str) -> np.ndarray:
        """Random numbers of a type; a few integers are beyond what float32 holds."""
        make = np.random.default_rng(self.draw.randrange(2**32))
        if kind.startswith("float"):
            return (make.normal(size=shape) * self.draw.choice((1, 1, 3))).astype(kind)
        if kind == "bool":
            return make.integers(0, 2, shape).astype(kind)
        low, high = (0, 9) if kind == "uint8" else (-9, 10)
        array = make.integers(low, high, shape)
        if kind in ("int32", "int64") and self.draw.random() < 0.3:
            array += make.choice([0, 2**24, 2**30], shape)
        return array.astype(kind)

    def constant(self, array: Any) -> str:
        """The name of a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def list(self, *values: int) -> str:
        """The name of a list of integers."""
        return self.constant(np.array(values, np.int64))

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        """The file so far."""
        infos = [
            helper.make_tensor_value_info(name, TYPES[one.dtype.name], ["N", *one.shape[1:]])
            for name, one in self.given.items()
        ]
        held = [numpy_helper.from_array(one, name) for name, one in self.constants.items()]
        graph = helper.make_graph(self.nodes, "net", infos, [onnx.ValueInfoProto(name=name) for name in outputs], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def needed_for(self, name: str) -> set[str]:
        """The values that a value is computed from."""
        needed = {name}
        for one in reversed(self.nodes):
            if needed & {*one.output}:
                needed |= {*one.input}
        return needed

    def add(self) -> None:
        """One more node, if onnxruntime runs it."""
        name = self.draw.choice([*list(self.values)[-3:], *self.values])
        families = (ONE, TWO, TWO, REDUCED, MOVES, MOVES, OTHERS, OTHERS)
        kind = self.draw.choice(self.draw.choice(families))
        before, count = dict(self.constants), len(self.nodes)
        try:
            node = self.node(kind, name, self.values[name])
        except (ValueError, IndexError):  # nothing to make of this shape
            self.constants = before
            del self.nodes[count:]
            return
        self.nodes.append(node)
        try:
            made = computed(self.model(list(node.output)), self.given)
            assert all(one.dtype.name in TYPES and one.size for one in made)
        except Exception:
            del self.nodes[count:]
            self.constants = before
            return
        self.values.update(zip(node.output, made, strict=True))

    def node(self, kind: str, name: str, x: np.ndarray) -> onnx.NodeProto:
        """A node of an operator that takes a value."""
        out = [f"v{len(self.nodes)}"]
        if kind in ONE:
            return helper.make_node(kind, [name], out, **self._settings(kind))
        if kind in TWO:
            return self._pair(kind, name, x, out)
        if kind in REDUCED:
            return self._reduced(kind, name, x, out)
        return getattr(self, f"make_{kind.lower()}", self._plain)(kind, name, x, out)

    def _settings(self, kind: str) -> dict[str, Any]:
        draw = self.draw
        match kind:
            case "LeakyRelu" | "Elu" | "Celu" | "ThresholdedRelu":
                return draw.choice([{}, {"alpha": 0.4}])
            case "HardSigmoid":
                return draw.choice([{}, {"alpha": 0.3, "beta": 0.4}])
            case "Selu":
                return draw.choice([{}, {"alpha": 1.4, "gamma": 0.9}])
            case "Gelu":
                return draw.choice([{}, {"approximate": "tanh"}])
            case "IsInf":
                return draw.choice([{}, {"detect_negative": 0}, {"detect_positive": 0}])
        return {}

    def _pair(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        draw = self.draw
        own: dict[str, Any] = {"fmod": draw.randint(0, 1)} if kind == "Mod" else {}
        alike = [other for other, one in self.values.items() if one.dtype == x.dtype]
        if draw.random() < 0.4:
            other = draw.choice(alike)
        else:
            shape = draw.choice([(), (1,), x.shape[-1:], x.shape[1:], (*x.shape[1:2], *(1,) * (x.ndim - 2))])
            array = self.numbers(shape, x.dtype.name)
            if kind in ("Div", "Mod"):
                array = np.where(array == 0, 2, array).astype(array.dtype)
            if kind == "Pow":
                array = np.array(draw.choice((0, 1, 2, 3, 0.5)), draw.choice((x.dtype, np.dtype("f4"))))
            other = self.constant(array)
        if self.opset < 7 and kind not in ("Max", "Min", "Sum", "Mean"):
            own = draw.choice([{}, {"broadcast": 1}, {"broadcast": 1, "axis": 1}])
        both = [name, other] if draw.random() < 0.7 or kind == "PRelu" or self.opset < 7 else [other, name]
        return helper.make_node(kind, both, out, **own)

    def _axis(self, x: np.ndarray, first: int = 1) -> int:
        axis = self.draw.randrange(first, x.ndim)
        return axis - x.ndim if self.opset >= 11 and self.draw.random() < 0.3 else axis

    def _reduced(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        axes = sorted({self.draw.randrange(1, x.ndim) for _ in range(self.draw.choice((1, 1, 2)))})
        own: dict[str, Any] = {"keepdims": self.draw.randint(0, 1)}
        if self.opset < (13 if kind == "ReduceSum" else 18):
            return helper.make_node(kind, [name], out, axes=axes, **own)
        return helper.make_node(kind, [name, self.list(*axes)], out, **own)

    def _plain(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        return helper.make_node(kind, [name], out)

    def make_reshape(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Within a sample."""
        size = int(np.prod(x.shape[1:]))
        sizes = self.draw.choice([[0, -1], [-1, size], [0, size, 1], [0, -1, x.shape[-1]], [-1, *x.shape[:0:-1]]])
        return helper.make_node(kind, [name, self.list(*sizes)], out)

    def make_flatten(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """From the first axis on."""
        if x.ndim < 2:
            raise ValueError("moves the samples")
        own = self.draw.choice([{}, {"axis": 1}, *([{"axis": 1 - x.ndim}] if self.opset >= 11 else [])])
        return helper.make_node(kind, [name], out, **own)

    def make_transpose(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """The samples stay."""
        rest = list(range(1, x.ndim))
        self.draw.shuffle(rest)
        return helper.make_node(kind, [name], out, perm=[0, *rest])

    def make_squeeze(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """A dimension of 1."""
        axis = self.draw.choice([i for i, size in enumerate(x.shape) if size == 1] or [x.ndim - 1])
        return self._with_axes(kind, name, [axis], out)

    def make_unsqueeze(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """One or two more."""
        axes = self.draw.choice([[1], [x.ndim], [1, 2], [-1] if self.opset >= 11 else [1]])
        return self._with_axes(kind, name, axes, out)

    def _with_axes(self, kind: str, name: str, axes: list[int], out: list[str]) -> onnx.NodeProto:
        if self.opset < 13:
            return helper.make_node(kind, [name], out, axes=axes)
        return helper.make_node(kind, [name, self.list(*axes)], out)

    def make_slice(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Along one dimension."""
        axis, draw = self._axis(x), self.draw
        begin, end = draw.randint(-4, 3), draw.choice([draw.randint(-3, 5), 2**31 - 1])
        if self.opset < 10:
            return helper.make_node(kind, [name], out, starts=[begin], ends=[end], axes=[axis])
        step = draw.choice((1, 1, 2, -1, -2))
        lists = [self.list(one) for one in (begin, end, axis, step)]
        return helper.make_node(kind, [name, *lists], out)

    def make_split(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Into two or three, of which one may be looked at."""
        axis, count = self._axis(x), self.draw.choice((2, 2, 3))
        size, own = x.shape[axis], {"axis": axis}
        outputs = [f"{out[0]}_{place}" for place in range(count)]
        if self.draw.random() < 0.5 and size >= count:
            sizes = [1] * (count - 1) + [size - count + 1]
            if self.opset < 13:
                return helper.make_node(kind, [name], outputs, split=sizes, **own)
            return helper.make_node(kind, [name, self.list(*sizes)], outputs, **own)
        more = {"num_outputs": count} if self.opset >= 18 else {}
        return helper.make_node(kind, [name], outputs, **own, **more)

    def make_concat(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """With itself or another value."""
        alike = [other for other, one in self.values.items() if one.dtype == x.dtype and one.ndim == x.ndim]
        return helper.make_node(kind, [name, self.draw.choice(alike)], out, axis=self._axis(x))

    def make_tile(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Within a sample."""
        return helper.make_node(kind, [name, self.list(1, *(self.draw.choice((1, 2)) for _ in x.shape[1:]))], out)

    def make_expand(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Dimensions of 1."""
        return helper.make_node(kind, [name, self.list(1, *(3 if size == 1 else size for size in x.shape[1:]))], out)

    def make_gather(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """At constant places."""
        axis = self._axis(x)
        low = -x.shape[axis] if self.opset >= 11 else 0
        places = [self.draw.randrange(low, x.shape[axis]) for _ in range(self.draw.choice((1, 2, 4)))]
        return helper.make_node(kind, [name, self.list(*places)], out, axis=axis)

    def make_lookup(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Rows of a table."""
        shape = self.draw.choice([(10, 3), (10,), (10, 2, 2)])
        return helper.make_node("Gather", [self.constant(self.numbers(shape, "float32")), name], out)

    def make_gatherelements(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """At places of each sample."""
        index = [other for other, one in self.values.items() if one.dtype == np.int64 and one.ndim == x.ndim]
        return helper.make_node(kind, [name, self.draw.choice(index or [name])], out, axis=1)

    def make_pad(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Not the samples."""
        draw, count = self.draw, x.ndim - 1
        pads = [0, *(draw.randint(-1, 2) for _ in range(count)), 0, *(draw.randint(0, 2) for _ in range(count))]
        mode = draw.choice(("constant", "constant", "reflect", "edge"))
        if mode != "constant":
            pads = [abs(one) for one in pads]
        if self.opset < 11:
            return helper.make_node(kind, [name], out, pads=pads, mode=mode, value=0.5)
        value = self.constant(np.array(2, x.dtype))
        return helper.make_node(kind, [name, self.list(*pads), value], out, mode=mode)

    def make_softmax(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Along an axis, or from it on."""
        own = self.draw.choice([{}, {"axis": self._axis(x)}])
        return helper.make_node(kind, [name], out, **own)

    make_logsoftmax = make_hardmax = make_softmax

    def make_cast(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """To any type."""
        return helper.make_node(kind, [name], out, to=TYPES[self.draw.choice(list(TYPES))])

    def make_clip(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """One bound, both, or none."""
        bounds = self.draw.choice([{"min": -1, "max": 2}, {"min": 0}, {"max": 1}, {}])
        if self.opset < 11:
            return helper.make_node(kind, [name], out, **{k: float(v) for k, v in bounds.items()})
        inputs = [self.constant(np.array(bounds[k]).astype(x.dtype)) if k in bounds else "" for k in ("min", "max")]
        return helper.make_node(kind, [name, *inputs], out)

    def make_argmax(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Along an axis."""
        own = {"select_last_index": self.draw.randint(0, 1)} if self.opset >= 12 else {}
        return helper.make_node(kind, [name], out, axis=self._axis(x), keepdims=self.draw.randint(0, 1), **own)

    make_argmin = make_argmax

    def make_cumsum(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Either way."""
        own = {"exclusive": self.draw.randint(0, 1), "reverse": self.draw.randint(0, 1)}
        return helper.make_node(kind, [name, self.constant(np.array(self._axis(x)))], out, **own)

    def make_where(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """By a truth of the data."""
        truths = [other for other, one in self.values.items() if one.dtype == np.bool_]
        other = self.constant(self.numbers(self.draw.choice([(), x.shape[-1:]]), x.dtype.name))
        return helper.make_node(kind, [self.draw.choice(truths), name, other], out)

    def make_topk(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """The first few."""
        count = self.draw.randint(1, x.shape[-1])
        outputs = [f"{out[0]}_0", f"{out[0]}_1"]
        if self.opset < 10:
            return helper.make_node(kind, [name], outputs, k=count)
        own = {"largest": self.draw.randint(0, 1)} if self.opset >= 11 else {}
        return helper.make_node(kind, [name, self.list(count)], outputs, **own)

    def make_matmul(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """With a constant matrix."""
        return helper.make_node(kind, [name, self.constant(self.numbers((x.shape[-1], 3), x.dtype.name))], out)

    def make_gemm(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """With a constant matrix and a bias."""
        matrix, bias = (self.constant(self.numbers(shape, x.dtype.name)) for shape in ((3, x.shape[-1]), (3,)))
        own = {"broadcast": 1} if self.opset < 7 else {}
        return helper.make_node(kind, [name, matrix, bias], out, transB=1, **own)

    def make_onehot(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """At the end."""
        values = self.constant(np.array([0, 3], self.draw.choice(("float32", "int64"))))
        return helper.make_node(kind, [name, self.constant(np.array(6)), values], out)

    def make_trilu(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Upper or lower."""
        own = {"upper": self.draw.randint(0, 1)}
        return helper.make_node(kind, [name, self.constant(np.array(self.draw.randint(-1, 1)))], out, **own)

    def make_constant(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """A sum with what two constants are."""
        kind = self.draw.choice(("Add", "Mul", "Div", "Max"))
        first, second = (self.constant(self.numbers(x.shape[-1:], x.dtype.name)) for _ in range(2))
        if not (self.constants[second] != 0).all():
            self.constants[second] = np.ones_like(self.constants[second])
        self.nodes.append(helper.make_node(kind, [first, second], [f"{out[0]}_c"]))
        own = {"broadcast": 1} if self.opset < 7 else {}
        return helper.make_node("Add", [name, f"{out[0]}_c"], out, **own)

    def _window(self, x: np.ndarray) -> dict[str, Any]:
        draw, dims = self.draw, x.ndim - 2
        own: dict[str, Any] = {"strides": [draw.randint(1, 2)] * dims}
        padding = draw.choice(("none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
        if padding == "pads":
            own["pads"] = [draw.randint(0, 1) for _ in range(2 * dims)]
        elif padding != "none":
            own["auto_pad"] = padding
        return own

    def make_maxpool(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """A window."""
        own = {"kernel_shape": [2] * (x.ndim - 2), **self._window(x)}
        if self.opset >= 10 and kind == "MaxPool":
            own["ceil_mode"] = self.draw.randint(0, 1)
        if self.opset >= 7 and kind == "AveragePool":
            own["count_include_pad"] = self.draw.randint(0, 1)
        return helper.make_node(kind, [name], out, **own)

    make_averagepool = make_maxpool

    def make_conv(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """A kernel."""
        dims = x.ndim - 2
        shape = (3, x.shape[1], *(2,) * dims) if kind == "Conv" else (x.shape[1], 3, *(2,) * dims)
        kernel, bias = (self.constant(self.numbers(one, x.dtype.name)) for one in (shape, (3,)))
        own = self._window(x)
        if kind == "ConvTranspose" and self.draw.random() < 0.5:
            sizes = [(size - 1) * own["strides"][0] + 2 + self.draw.randint(-1, 1) for size in x.shape[2:]]
            own = {"strides": own["strides"], "output_shape": sizes}
        return helper.make_node(kind, [name, kernel, bias], out, **own)

    make_convtranspose = make_conv

    def make_upsample(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Up."""
        scales = [1.0, 1.0, *(self.draw.choice((1.0, 2.0, 3.0)) for _ in x.shape[2:])]
        mode = self.draw.choice(("nearest", "linear"))
        if self.opset < 9:
            return helper.make_node(kind, [name], out, scales=scales, mode=mode)
        return helper.make_node(kind, [name, self.constant(np.array(scales, np.float32))], out, mode=mode)

    def make_resize(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Up and down."""
        scales = self.constant(np.array([1, 1, *(self.draw.choice((0.5, 1, 2)) for _ in x.shape[2:])], np.float32))
        own = {"mode": self.draw.choice(("nearest", "linear"))}
        if self.opset < 11:
            return helper.make_node(kind, [name, scales], out, **own)
        places = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        own["coordinate_transformation_mode"] = self.draw.choice(places)
        roi = self.constant(np.zeros(0, np.float32)) if self.opset < 13 else ""
        return helper.make_node(kind, [name, roi, scales], out, **own)

    def make_layernormalization(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Of the last dimension."""
        both = [self.constant(self.numbers(x.shape[-1:], x.dtype.name)) for _ in range(2)]
        return helper.make_node(kind, [name, *both], out)

    def make_batchnormalization(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """In evaluation."""
        four = [self.numbers(x.shape[1:2], x.dtype.name) for _ in range(4)]
        four[3] = (four[3] ** 2 + 1).astype(x.dtype)
        own = {"is_test": 1} if self.opset < 7 else {}
        return helper.make_node(kind, [name, *map(self.constant, four)], out, **own)

    def make_instancenormalization(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Of each channel."""
        both = [self.constant(self.numbers(x.shape[1:2], x.dtype.name)) for _ in range(2)]
        return helper.make_node(kind, [name, *both], out)

    def make_lrn(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Over channels."""
        return helper.make_node(kind, [name], out, size=self.draw.choice((1, 2, 3, 5)), alpha=0.2)

    def make_depthtospace(self, kind: str, name: str, x: np.ndarray, out: list[str]) -> onnx.NodeProto:
        """Blocks."""
        return helper.make_node(kind, [name], out, blocksize=2)

    make_spacetodepth = make_depthtospace


def computed(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime gives."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_onnx_values_"))


def attempt(draw: random.Random) -> None:
    """Grow a graph, import it, and compare one output."""
    graph = Graph(draw)
    wanted = draw.randint(1, 4)
    for _ in range(12):
        graph.add()
        if len(graph.nodes) >= wanted:
            break
    outputs = [name for name in graph.values if name not in graph.given]
    if not outputs:
        return
    name = draw.choice([outputs[-1], *outputs])
    want = graph.values[name]
    path = _FOLDER / "m.onnx"
    onnx.save(graph.model([name]), path)
    module = descend.onnx.load(path).to_torch(outputs=[name]).eval()
    needed = graph.needed_for(name)
    taken = {key: torch.from_numpy(one) for key, one in graph.given.items() if key in needed}
    with torch.no_grad():
        got = module(**taken).numpy()
    compare(graph, name, got, want)


def compare(graph: Graph, name: str, got: np.ndarray, want: np.ndarray) -> None:
    """Raise AssertionError where results differ."""
    if want.ndim == 1:
        want = want[:, None]
    steps = "; ".join(
        f"{one.op_type}({', '.join(one.input)}){ {a.name: helper.get_attribute_value(a) for a in one.attribute} }"
        for one in graph.nodes
    )
    about = f"opset {graph.opset}, { {k: (v.dtype.name, v.shape) for k, v in graph.given.items()} }, {name}: {steps}"
    assert got.shape == want.shape, f"shape {got.shape} for {want.shape}: {about}"
    kinds = {one.dtype.name for one in graph.values.values()}
    tolerance = max((TOLERANCES[one] for one in kinds if one in TOLERANCES), default=0)
    exact = want.dtype.kind in "iub"
    with np.errstate(all="ignore"):
        if any(np.isnan(one.astype("f8")).any() for one in graph.values.values()):
            return  # the place and the order of what is no number are left open
        if "Reduce" in steps and any(
            one.dtype == np.int64 and (np.abs(one.astype("f8")) > 2**53).any() for one in graph.values.values()
        ):
            return  # onnxruntime reduces integers as float64, which rounds these
        if "Pow" in steps and any(
            one.dtype.kind == "i" and (one == np.iinfo(one.dtype).min).any() for one in graph.values.values()
        ):
            return  # onnxruntime takes powers in float64, and what is beyond the integers is left open there
    with np.errstate(all="ignore"):
        a, b = (got, want) if exact and got.dtype.kind in "iub" else (got.astype("f8"), want.astype("f8"))
        good = (a == b) if exact else np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert good.all(), f"values {got[~good][:3]} for {want[~good][:3]}: {about}"


if __name__ == "__main__":
    main(attempt, __doc__ or "")
