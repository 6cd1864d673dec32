"""Nodes of constants alone, computed by the reference of ONNX itself, within a budget.

What a node computes is bounded before it is computed, by the shapes of its inputs and, for operators such as Expand, by
their values. An operator whose result has no such bound here is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from descend.onnx.values import ConstantValue, Node, UnsupportedNode, integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from descend.onnx.values import Budget

__all__ = ["fold", "foldable"]

Inputs = Sequence["NDArray[Any] | None"]
Attributes = Mapping[str, Any]
Size = Callable[[Inputs, Attributes], int]  # entries that are computed, intermediates included

_MAX_DIMS = 32  # of an input: numpy's take crashes the process where its result has more than 64


def foldable(kind: str) -> bool:
    """Whether nodes of an operator are computed where all their inputs are constants."""
    return kind in _SIZES


def fold(node: Node, outputs: int, budget: Budget) -> list[NDArray[Any]]:
    """The outputs of a node as arrays.

    Args:
        node: The node, as its newest version has it.
        outputs: How many outputs it has.
        budget: What the file may still ask for.

    Raises:
        UnsupportedNode: the node is malformed, computes too much, or cannot be bounded.
    """
    kind, attributes = node.kind, node.attributes
    given: Inputs = [one.array if isinstance(one, ConstantValue) else None for one in node.inputs]
    arrays = [one for one in given if one is not None]
    if any(one.dtype.kind in "OSUV" and not _is_small_float(one) for one in arrays):
        raise UnsupportedNode("computes with texts, which no layer takes")
    if any(one.dtype.kind == "c" for one in arrays):
        raise UnsupportedNode("computes with complex numbers, which no layer takes")
    if any(one.ndim > _MAX_DIMS for one in arrays):
        raise UnsupportedNode(f"computes with a constant of more than {_MAX_DIMS} dimensions")
    if kind == "LpNormalization" and attributes.get("p", 2) == 1:
        raise UnsupportedNode("divides by sums of absolute values, which ONNX's reference computes with their signs")
    entries = _SIZES[kind](given, attributes)
    budget.array(entries, itemsize=_itemsize(attributes, arrays), operations=entries * _SLOW.get(kind, 1))
    if kind == "CumSum":  # the reference wants a number for the axis, where exporters write a list of one
        given = [given[0], *(one if one is None else one.reshape(()) for one in given[1:])]
    try:
        with np.errstate(all="ignore"):
            return _of_rows(node, given) if node.rows else _computed(node, given, outputs)
    except Exception as error:  # whatever the reference raises for a node that is wrong
        raise UnsupportedNode(f"cannot be computed: {error}") from error


def _computed(node: Node, given: Inputs, outputs: int) -> list[NDArray[Any]]:
    names = [f"x{place}" if one is not None else "" for place, one in enumerate(given)]
    fields: dict[str, Any] = {
        name: numpy_helper.from_array(one) if isinstance(one, np.ndarray) else one
        for name, one in node.attributes.items()
    }
    proto = onnx.helper.make_node(node.kind, names, [f"y{place}" for place in range(outputs)], **fields)
    evaluator = ReferenceEvaluator(proto, opsets={"": onnx.defs.onnx_opset_version()})
    values = {name: one for name, one in zip(names, given, strict=True) if name}
    computed: Any = evaluator.run(None, values)
    return [np.asarray(one) for one in computed]


def _of_rows(node: Node, given: Inputs) -> list[NDArray[Any]]:
    """A Softmax, LogSoftmax or Hardmax that takes all dimensions from its axis on for one."""
    x, axis = _at(given, 0), node.attributes["axis"]
    rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
    (y,) = _computed(replace(node, attributes={"axis": 1}), [rows], 1)
    return [y.reshape(x.shape)]


def _is_small_float(array: NDArray[Any]) -> bool:
    """Whether the format is one of those that numpy itself does not have, such as bfloat16."""
    return array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize <= 2


def _itemsize(attributes: Attributes, arrays: Sequence[NDArray[Any]]) -> int:
    """Bytes of an entry of the result, or more."""
    to = attributes.get("to")
    if to is None:
        return max(4, *(one.itemsize for one in arrays))
    if to == onnx.TensorProto.STRING or to not in onnx.TensorProto.DataType.values():
        raise UnsupportedNode(f"casts to format {to}, which no layer takes")
    return max(4, onnx.helper.tensor_dtype_to_np_dtype(to).itemsize)


def _at(given: Inputs, place: int) -> NDArray[Any]:
    found = given[place] if place < len(given) else None
    if found is None:
        raise UnsupportedNode(f"is given no input {place + 1}")
    return found


def _ints(given: Inputs, place: int) -> list[int]:
    array = _at(given, place)
    if array.dtype.kind == "f" and np.isfinite(array).all():  # the depth of a OneHot may be one
        array = array.astype(np.int64)
    return integers(array)


def _number(given: Inputs, place: int) -> float:
    array = _at(given, place)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise UnsupportedNode(f"has {array.size} entries of {array.dtype} as input {place + 1}; expected a number")
    return float(array.reshape(()))


def _shapes(given: Inputs) -> list[tuple[int, ...]]:
    return [one.shape for one in given if one is not None]


def _together(*shapes: Sequence[int]) -> int:
    """Entries of shapes that are broadcast; sizes that do not fit are left to the reference."""
    rank = max(map(len, shapes), default=0)
    wide = [(1,) * (rank - len(one)) + tuple(one) for one in shapes]
    return prod(max(column) for column in zip(*wide, strict=True))


def _broadcast(given: Inputs, attributes: Attributes) -> int:
    return _together(*_shapes(given))


def _sum(given: Inputs, attributes: Attributes) -> int:
    return sum(map(prod, _shapes(given)))


def _few_of_each(given: Inputs, attributes: Attributes) -> int:
    """For results of a few numbers for each entry of the inputs, such as places of entries."""
    return 4 * sum(prod(shape) * max(1, len(shape)) for shape in _shapes(given))


def _expand(given: Inputs, attributes: Attributes) -> int:
    return _together(_at(given, 0).shape, [abs(one) for one in _ints(given, 1)])


def _tile(given: Inputs, attributes: Attributes) -> int:
    return _at(given, 0).size * prod(abs(one) for one in _ints(given, 1))


def _constant_of_shape(given: Inputs, attributes: Attributes) -> int:
    return prod(abs(one) for one in _ints(given, 0))


def _range(given: Inputs, attributes: Attributes) -> int:
    begin, end, step = (_number(given, i) for i in range(3))
    if not step or not math.isfinite((end - begin) / step):
        raise UnsupportedNode(f"counts from {begin:g} to {end:g} in steps of {step:g}")
    return max(0, math.ceil((end - begin) / step))


def _pad(given: Inputs, attributes: Attributes) -> int:
    x = _at(given, 0)
    pads = _ints(given, 1) if len(given) > 1 else list(attributes.get("pads", ()))
    axes = _ints(given, 3) if len(given) > 3 and given[3] is not None else range(x.ndim)
    sizes, count = list(x.shape), len(pads) // 2
    for axis, before, behind in zip(axes, pads[:count], pads[count:], strict=False):
        if not -x.ndim <= axis < x.ndim:
            raise UnsupportedNode(f"pads axis {axis} of {x.ndim} dimensions")
        sizes[axis] += abs(before) + abs(behind)
    return prod(sizes)


def _one_hot(given: Inputs, attributes: Attributes) -> int:
    return _at(given, 0).size * max(1, *(abs(one) for one in _ints(given, 1)))


def _gather(given: Inputs, attributes: Attributes) -> int:
    x, axis = _at(given, 0), attributes.get("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise UnsupportedNode(f"takes entries along axis {axis} of {x.ndim} dimensions")
    return _at(given, 1).size * prod(size for i, size in enumerate(x.shape) if i != axis % x.ndim)


def _gather_nd(given: Inputs, attributes: Attributes) -> int:
    x, places = _at(given, 0).shape, _at(given, 1).shape
    return prod(places[:-1]) * prod(x[(places or (0,))[-1] :])


def _matmul(given: Inputs, attributes: Attributes) -> int:
    a, b = _at(given, 0).shape or (1,), _at(given, 1).shape or (1,)
    a, b = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    return _together(a[:-2], b[:-2]) * a[-2] * a[-1] * b[-1]


def _gemm(given: Inputs, attributes: Attributes) -> int:
    a, b = _at(given, 0), _at(given, 1)
    if a.ndim != 2 or b.ndim != 2:
        raise UnsupportedNode("multiplies what are no matrices")
    rows, inner = a.shape[::-1] if attributes.get("transA", 0) else a.shape
    columns = b.shape[0 if attributes.get("transB", 0) else 1]
    return rows * max(1, inner) * columns + _together((rows, columns), *_shapes(given[2:]))


def _einsum(given: Inputs, attributes: Attributes) -> int:
    """The product of all sizes, since the reference sums without intermediates."""
    equation = attributes.get("equation", b"")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, _shapes(given), strict=False):
        before, dots, behind = term.partition("...")
        rest = len(shape) - len(before) - len(behind)
        letters = [*before, *(f"...{i}" for i in range(rest if dots else 0)), *behind]
        for letter, size in zip(letters, shape, strict=False):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return prod(sizes.values())


def _resize(given: Inputs, attributes: Attributes) -> int:
    x = _at(given, 0)
    axes = list(attributes.get("axes", range(x.ndim)))
    sizes = [float(size) for size in x.shape]
    if x.ndim > 8:
        raise UnsupportedNode(f"resizes {x.ndim} dimensions")
    if len(given) > 3 and given[3] is not None:
        wanted = [float(one) for one in _ints(given, 3)]
    elif len(given) > 1:
        factors = np.atleast_1d(_at(given, min(2, len(given) - 1))).reshape(-1).astype(float)
        if not all(-x.ndim <= axis < x.ndim for axis in axes) or not np.isfinite(factors).all():
            raise UnsupportedNode("has axes or scales that do not fit its input")
        wanted = [sizes[axis] * scale for axis, scale in zip(axes, factors.tolist(), strict=False)]
    else:
        raise UnsupportedNode("has neither sizes nor scales")
    for axis, size in zip(axes, wanted, strict=False):
        if not -x.ndim <= axis < x.ndim:
            raise UnsupportedNode(f"resizes axis {axis} of {x.ndim} dimensions")
        sizes[axis] = size
    if min(sizes, default=1.0) < 1:
        raise UnsupportedNode("resizes to nothing")
    return math.ceil(prod(sizes)) + x.size


def _split(given: Inputs, attributes: Attributes) -> int:
    return _sum(given, attributes) + abs(attributes.get("num_outputs", 0))


def _dequantize(given: Inputs, attributes: Attributes) -> int:
    return _broadcast(given[:1], attributes) + 2 * _sum(given[1:], attributes) * max(1, attributes.get("block_size", 1))


_ENTRYWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor
"""
_NO_LARGER = """
    Concat DepthToSpace Flatten Identity Reshape Shape Size Slice SpaceToDepth Squeeze Transpose Unsqueeze
    ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare GlobalAveragePool GlobalMaxPool
"""
_A_FEW_OF_EACH = """
    BatchNormalization Compress CumSum Dropout GatherElements Hardmax InstanceNormalization LayerNormalization
    LogSoftmax LpNormalization MeanVarianceNormalization NonZero ReverseSequence ScatterElements ScatterND Softmax
    TopK Trilu Unique
"""

_SIZES: Mapping[str, Size] = {
    **dict.fromkeys(_ENTRYWISE.split(), _broadcast),
    **dict.fromkeys(_NO_LARGER.split(), _sum),
    **dict.fromkeys(_A_FEW_OF_EACH.split(), _few_of_each),
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize,
    "Einsum": _einsum,
    "Expand": _expand,
    "EyeLike": _sum,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "QuantizeLinear": _broadcast,
    "Range": _range,
    "Resize": _resize,
    "Split": _split,
    "Tile": _tile,
}

# Nanoseconds that the reference takes for an entry, where it is a loop in Python; it takes some 5 for others.
_SLOW: Mapping[str, int] = {
    "Erf": 100,
    "GatherElements": 200,
    "GatherND": 1_000,
    "OneHot": 50,
    "Resize": 20_000,
    "ReverseSequence": 200,
    "ScatterElements": 1_000,
    "ScatterND": 1_000,
    "TopK": 200,
    "Unique": 100,
}
