"""Operators on each entry: of one tensor, and of several brought to one shape."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from descend.graph import (
    Abs,
    Acos,
    Acosh,
    Add,
    AddConstant,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    ChannelwiseFullyConnected,
    Clamp,
    Constant,
    ConstantSubtract,
    Cos,
    Cosh,
    DataType,
    Divide,
    Dropout,
    Equal,
    EqualConstant,
    Erf,
    Exp,
    Floor,
    FullyConnected,
    Greater,
    GreaterEqual,
    Identity,
    Less,
    LessEqual,
    Log,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    Max,
    MaxConstant,
    Min,
    MinConstant,
    Mod,
    Multiply,
    Negative,
    NotEqual,
    NotEqualConstant,
    Pow,
    Reciprocal,
    Relu,
    Round,
    Scale,
    Select,
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Softplus,
    Softsign,
    Sqrt,
    Square,
    Subtract,
    SubtractConstant,
    Tan,
    Tanh,
)
from descend.graph.kinds.integers import IntegerOperator
from descend.onnx.graph_importer import imports
from descend.onnx.importers.steps import known_sizes, times
from descend.onnx.values import (
    HALVES,
    INTEGERS,
    MULTIPLE,
    ConstantValue,
    Node,
    ShapeValue,
    Tensor,
    UnsupportedNode,
    Value,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from descend.graph import Layer
    from descend.onnx.graph_importer import GraphImporter


__all__ = ["ENTRYWISE", "JOINABLE", "chosen"]

# One tensor in, one out, nothing to set.
_ENTRYWISE: dict[str, type[Layer]] = {
    "Abs": Abs,
    "Acos": Acos,
    "Acosh": Acosh,
    "Asin": Asin,
    "Asinh": Asinh,
    "Atan": Atan,
    "Atanh": Atanh,
    "Ceil": Ceil,
    "Cos": Cos,
    "Cosh": Cosh,
    "Erf": Erf,
    "Exp": Exp,
    "Floor": Floor,
    "Log": Log,
    "Neg": Negative,
    "Not": LogicalNot,
    "Reciprocal": Reciprocal,
    "Relu": Relu,
    "Round": Round,
    "Sigmoid": Sigmoid,
    "Sign": Sign,
    "Sin": Sin,
    "Sinh": Sinh,
    "Softplus": Softplus,
    "Softsign": Softsign,
    "Sqrt": Sqrt,
    "Tan": Tan,
    "Tanh": Tanh,
}


# Operators that do the same within each of samples · heads as within each sample; axes are counted from the end.
JOINABLE = {*_ENTRYWISE, "MatMul", "Transpose", "Softmax", "Add", "Sub", "Mul", "Div", "Identity", "Dropout", "Where"}


_OF_INTEGERS = ("Abs", "Neg", "Relu", "Sign")


@imports(*(kind for kind in _ENTRYWISE if kind not in _OF_INTEGERS))
@imports(*_OF_INTEGERS, integers="computed")
def entrywise(r: GraphImporter, node: Node) -> Value:
    """The operator of that name."""
    return r.layer(_ENTRYWISE[node.kind], node, node.tensor())


@imports("Identity", integers="moved")
def identity(r: GraphImporter, node: Node) -> Value:
    """Nothing."""
    value = node.given(0)
    if value is None:
        raise UnsupportedNode("is given nothing")
    return value


@imports("Dropout")
def dropout(r: GraphImporter, node: Node) -> Value:
    """Dropout, which does nothing in evaluation."""
    if node.outputs > 1:
        raise UnsupportedNode("hands out its mask")
    ratio = node.number(1, "ratio", 0.5)
    return r.layer(Dropout, node, node.tensor(), keep_prob=1 - ratio) if ratio else node.tensor()


@imports("Cast", integers="moved")
def cast(r: GraphImporter, node: Node) -> Value:
    """ToFormat; truths are 0 and 1, and double is a format that a layer asks for."""
    value, to = node.given(0), node.get("to", 0)
    if value is None:
        raise UnsupportedNode("is given nothing")
    if isinstance(value, ShapeValue) and to not in INTEGERS:
        raise UnsupportedNode("makes fractions of the number of samples")
    if not isinstance(value, Tensor) or value.type == to:
        return value
    if to == onnx.TensorProto.BOOL:
        return r.layer(NotEqualConstant, node, value, constant=0.0)
    if to in INTEGERS:
        return r.tensor_of_integers(value, INTEGERS[to], node.name)
    if to not in (*HALVES, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise UnsupportedNode(f"casts to format {to}, which no layer takes")
    if to in HALVES or value.type in INTEGERS or value.type == onnx.TensorProto.BOOL:
        return r.formatted(value, HALVES.get(to, "float"), node.name)
    if onnx.TensorProto.DOUBLE not in (to, value.type):
        return value
    wanted = DataType.DOUBLE if to == onnx.TensorProto.DOUBLE else DataType.FLOAT
    return replace(value, layer=r.layer(Identity, node, value, datatype=wanted).layer)


_LARGEST = float(np.finfo(np.float32).max)  # as a bound it means none, and half precision does not have it


@imports("Clip", integers="computed")
def clip(r: GraphImporter, node: Node) -> Value:
    """Clamp, or a bound on one side."""
    x = node.tensor()
    if node.integers:
        for kind, bound in ((Max, node.given(1)), (Min, node.given(2))):
            x = x if bound is None else r.layer(kind, node, *r.broadcast(node, x, bound))
        return r.gives_integers(x, node.integers)
    low, high = (node.number(i, name, unset) for i, name, unset in ((1, "min", -math.inf), (2, "max", math.inf)))
    low, high = (one if abs(one) < _LARGEST else math.copysign(math.inf, one) for one in (low, high))
    if math.isfinite(low) and math.isfinite(high) and low < high:  # else the upper bound is what there is
        return r.layer(Clamp, node, x, min=low, max=high)
    x = r.layer(MaxConstant, node, x, constant=low) if math.isfinite(low) else x
    return r.layer(MinConstant, node, x, constant=high) if math.isfinite(high) else x


_PAIRS: dict[str, type[Layer]] = {
    "Add": Add,
    "Sub": Subtract,
    "Mul": Multiply,
    "Div": Divide,
    "Pow": Pow,
    "Mod": Mod,
    "Max": Max,
    "Min": Min,
    "Equal": Equal,
    "Less": Less,
    "LessOrEqual": LessEqual,
    "Greater": Greater,
    "GreaterOrEqual": GreaterEqual,
    "And": LogicalAnd,
    "Or": LogicalOr,
    "Xor": LogicalXor,
    "Sum": Add,
}


_WITH_NUMBER: dict[str, type[Layer]] = {
    "Add": AddConstant,
    "Sub": SubtractConstant,
    "Mul": Scale,
    "Max": MaxConstant,
    "Min": MinConstant,
    "Sum": AddConstant,
}


# Operators that work on entries, wherever the samples are.
ENTRYWISE = {
    *(*_ENTRYWISE, *_PAIRS),
    *("Identity", "Dropout", "Cast", "Clip", "Where", "IsNaN", "IsInf"),
    *("Gelu", "LeakyRelu", "Elu", "Selu", "Celu", "Mish", "HardSigmoid", "HardSwish"),
}


# Operators of fractions that are others of integers.
_INTEGERS = {"Div": "divide", "Pow": "power", "Mod": "modulo"}


@imports("Mean")
def mean(r: GraphImporter, node: Node) -> Value:
    """A sum over the number of tensors."""
    total = pair(r, replace(node, kind="Sum", name=f"{node.name}/sum"))
    if not isinstance(total, Tensor):
        raise UnsupportedNode("computes with the number of samples")
    return times(r, node.name, total, 1 / len(node.inputs))


@imports(*_PAIRS, integers="computed")
def pair(r: GraphImporter, node: Node) -> Value:
    """Two tensors, a tensor and a number, or a tensor and a constant tensor."""
    if node.kind == "Mod" and not node.get("fmod", 0) and not node.integers:
        raise UnsupportedNode("has the sign of the divisor (fmod 0), and Mod has that of the dividend")
    if any(isinstance(value, ShapeValue) for value in node.inputs):
        return _of_sizes(node)
    if not node.inputs:
        raise UnsupportedNode("is given nothing")
    first, *others = node.inputs
    for other in others:
        first = _pair(r, node, first, other)
    if not isinstance(first, Tensor):  # one input alone
        raise UnsupportedNode("takes a constant alone")
    return first


def _of_sizes(node: Node) -> Value:
    """A size times another, which a Reshape works out, or a question that has one answer for any number of samples."""
    sizes = [known_sizes(value) for value in node.inputs]
    if len(sizes) != 2:
        raise UnsupportedNode("computes with the number of samples")
    if node.kind == "Mul" and [len(one) for one in sizes] == [1, 1]:
        return ShapeValue((MULTIPLE,), single=True)
    answers = [_same(*both) for both in _together(*sizes)] if node.kind == "Equal" else [None]
    if None in answers:
        raise UnsupportedNode("computes with the number of samples")
    given = [value for value in node.inputs if isinstance(value, (ConstantValue, ShapeValue))]
    single = all(one.single if isinstance(one, ShapeValue) else one.array.ndim == 0 for one in given)
    return ConstantValue(np.array(answers).reshape(() if single else -1))


def _together(*each: tuple[int | None, ...]) -> list[tuple[int | None, ...]]:
    count = max(map(len, each), default=0)
    if any(len(one) not in (1, count) for one in each):
        raise UnsupportedNode("brings together lists of sizes of different lengths")
    return list(zip(*(one if len(one) == count else one * count for one in each), strict=True))


def _same(a: int | None, b: int | None) -> bool | None:
    """Whether two sizes are the same; None where the number of samples decides it, which is at least 1."""
    known = [size for size in (a, b) if size is not None and size != MULTIPLE]
    if len(known) == 2:
        return a == b
    return False if min(known, default=1) < 1 else None


def _pair(r: GraphImporter, node: Node, a: Value | None, b: Value | None) -> Tensor:
    if isinstance(a, ShapeValue) or isinstance(b, ShapeValue):
        raise UnsupportedNode("computes with the number of samples")
    if node.integers:
        return _pair_of_integers(r, node, a, b)
    if isinstance(a, Tensor) and isinstance(b, ConstantValue):
        merged = _with_bias(r, node, a, b) or _with_number(r, node, a, b)
        if merged is not None:
            return merged
    if isinstance(a, ConstantValue) and isinstance(b, Tensor):
        merged = _with_bias(r, node, b, a) or _number_first(r, node, a, b)
        if merged is not None:
            return merged
    return r.layer(_PAIRS[node.kind], node, *r.broadcast(node, a, b))


def _pair_of_integers(r: GraphImporter, node: Node, a: Value | None, b: Value | None) -> Tensor:
    if node.kind == "Pow":
        b = _exponent(r, node, b)
        if isinstance(a, Tensor) and isinstance(b, ConstantValue) and b.array.size == 1 and b.array.item() in (2, 3):
            y = r.layer(Multiply, f"{node.name}/square" if b.array.item() == 3 else node, a, a)
            return r.gives_integers(y if b.array.item() == 2 else r.layer(Multiply, node, y, a), node.integers)
    operation = _INTEGERS.get(node.kind)
    if operation == "modulo" and node.get("fmod", 0):
        operation = "remainder"
    both = r.broadcast(node, a, b)
    if operation is None:
        y = r.layer(_PAIRS[node.kind], node, *both)
    else:
        y = r.layer(IntegerOperator, node, *both, operation=operation)
    return r.gives_integers(y, node.integers)


def _exponent(r: GraphImporter, node: Node, b: Value | None) -> Value | None:
    if b is None or b.type in INTEGERS:
        return r.as_integers(b, node.integers, f"{node.name}/exponent")
    if not isinstance(b, ConstantValue) or (b.array != np.floor(b.array)).any() or (abs(b.array) > 64).any():
        raise UnsupportedNode("raises integers to fractions")
    return ConstantValue(b.array.astype(node.integers), b.name)


def _number(fixed: ConstantValue, x: Tensor) -> float | None:
    """The number that a constant is: of one entry, which is not trained, whatever file it comes from."""
    plain = fixed.array.size == 1 and fixed.array.ndim <= len(x.shape) + 1
    return float(fixed.array.reshape(())) if plain else None


def _with_number(r: GraphImporter, node: Node, x: Tensor, fixed: ConstantValue) -> Tensor | None:
    number = _number(fixed, x)
    if number is None or not math.isfinite(number):
        return None
    if node.kind in _WITH_NUMBER:
        return r.layer(_WITH_NUMBER[node.kind], node, x, constant=number)
    if node.kind == "Div" and number:
        return times(r, node.name, x, 1 / number)
    if node.kind == "Pow" and number in (0.5, 2.0):
        return r.layer(Sqrt if number == 0.5 else Square, node, x)
    constant = r.layer(Constant, f"{node.name}/constant", value=number, num_neurons=x.shape or (1,))
    return r.layer(_PAIRS[node.kind], node, x, constant)


def _number_first(r: GraphImporter, node: Node, fixed: ConstantValue, x: Tensor) -> Tensor | None:
    number = _number(fixed, x)
    if number is None or not math.isfinite(number):
        return None
    if node.kind == "Sub":
        return r.layer(ConstantSubtract, node, x, constant=number)
    if node.kind in _WITH_NUMBER:
        return r.layer(_WITH_NUMBER[node.kind], node, x, constant=number)
    constant = r.layer(Constant, f"{node.name}/constant", value=number, num_neurons=x.shape or (1,))
    return r.layer(_PAIRS[node.kind], node, constant, x)


def _with_bias(r: GraphImporter, node: Node, x: Tensor, fixed: ConstantValue) -> Tensor | None:
    """A product with a matrix takes the constant that is added to it alone as its bias."""
    layer = x.layer
    if node.kind != "Add" or not isinstance(layer, (FullyConnected, ChannelwiseFullyConnected)):
        return None
    if fixed.array.shape != x.shape[-1:] or len(layer.weights) != 1 or layer.children or r.uses[layer.name] != 1:
        return None
    if isinstance(layer, FullyConnected):
        layer.has_bias = True
    else:
        layer.bias = True
    layer.add_weights(r.weights(fixed, f"{layer.name}/bias"))
    return x


@imports("Where", integers="computed")
def where(r: GraphImporter, node: Node) -> Value:
    """Select by a truth."""
    truths, *branches = (node.given(place) for place in range(3))
    if isinstance(truths, ConstantValue) and any(isinstance(value, ShapeValue) for value in branches):
        chosen = _together(*map(known_sizes, (ConstantValue(truths.array), *branches)))
        return ShapeValue(tuple(yes if truth else no for truth, yes, no in chosen))
    if not any(isinstance(value, Tensor) for value in node.inputs):
        raise UnsupportedNode("computes with the number of samples")
    truth, true, false = r.broadcast(node, truths, *branches)
    return r.layer(Select, node, truth, true, false, value=1.0, epsilon=0.5)


def chosen(r: GraphImporter, node: Node, truths: NDArray[np.bool_], x: Tensor) -> Tensor:
    """x where a constant is true, and elsewhere 0."""
    truth, x = r.broadcast(node, ConstantValue(truths), x)
    own: dict[str, Any] = {"value": 1.0, "epsilon": 0.5}
    if not node.integers:
        return r.layer(Select, node, truth, x, **own, constant_if_false=True)
    zeros = r.as_tensor(ConstantValue(np.zeros(x.shape, node.integers)), node, len(x.shape))
    return r.gives_integers(r.layer(Select, node, truth, x, zeros, **own), node.integers)


@imports("IsNaN", "IsInf")
def special(r: GraphImporter, node: Node) -> Value:
    """What differs from itself, or is of infinite size."""
    x = node.tensor()
    if node.kind == "IsNaN":
        return r.layer(NotEqual, node, x, x)
    positive, negative = bool(node.get("detect_positive", 1)), bool(node.get("detect_negative", 1))
    if positive is not negative:
        return r.layer(EqualConstant, node, x, constant=math.inf if positive else -math.inf)
    if not positive:
        return r.layer(Scale, node, r.layer(Equal, f"{node.name}/all", x, x), constant=0.0)
    return r.layer(EqualConstant, node, r.layer(Abs, f"{node.name}/abs", x), constant=math.inf)


@imports("Trilu", integers="computed")
def triangle(r: GraphImporter, node: Node) -> Value:
    """Select by a constant triangle."""
    x = node.tensor()
    if len(x.shape) < 2:
        raise UnsupportedNode("takes a triangle of samples and one dimension")
    r.budget.array(*x.shape[-2:], itemsize=8)
    kept = np.ones(x.shape[-2:], np.bool_)
    offset = 0 if node.given(1) is None else min(max(node.integer(1), -len(kept)), kept.shape[1])
    there = np.triu(kept, offset) if node.get("upper", 1) else np.tril(kept, offset)
    return chosen(r, node, there, x)
