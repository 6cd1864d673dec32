"""Operators on each entry: of one tensor, and of several brought to one shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx

from descend.graph import (
    Abs,
    Acos,
    Acosh,
    Add,
    AddConstant,
    Argmax,
    Argmin,
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
    Divide,
    Dropout,
    Equal,
    Erf,
    Exp,
    Floor,
    FullyConnected,
    Greater,
    GreaterEqual,
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
from descend.lower.onnx.reader import Fixed, Node, Reader, Refused, Sizes, Tensor, Value, reads
from descend.lower.onnx.readings.steps import known_sizes, times

if TYPE_CHECKING:
    from descend.graph import Layer


__all__ = ["ENTRYWISE", "JOINABLE"]

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


# Operators that work on entries, wherever the samples are.
ENTRYWISE = {
    *_ENTRYWISE,
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Identity",
    "Dropout",
    "Cast",
    "Clip",
    "Gelu",
    "LeakyRelu",
    "Elu",
}


@reads(*_ENTRYWISE)
def entrywise(r: Reader, node: Node) -> Value:
    """The operator of that name."""
    return r.layer(_ENTRYWISE[node.kind], node, node.tensor())


@reads("Identity")
def identity(r: Reader, node: Node) -> Value:
    """Nothing."""
    (value,) = node.inputs
    assert value is not None
    return value


@reads("Dropout")
def dropout(r: Reader, node: Node) -> Value:
    """Dropout, which does nothing in evaluation."""
    if node.outputs > 1:
        raise Refused("hands out its mask")
    ratio = node.float(1, "ratio", 0.5)
    return r.layer(Dropout, node, node.tensor(), keep_prob=1 - ratio) if ratio else node.tensor()


@reads("Cast")
def cast(r: Reader, node: Node) -> Value:
    """Numbers are numbers here; fractions are rounded towards zero for whole numbers, truths are 0 and 1."""
    (value,) = node.inputs
    to = node.get("to", 0)
    if isinstance(value, Fixed):
        return Fixed(value.array.astype(onnx.helper.tensor_dtype_to_np_dtype(to)), value.name)
    if not isinstance(value, Tensor):
        assert value is not None
        return value
    if to == onnx.TensorProto.BOOL:
        return r.layer(NotEqualConstant, node, value, constant=0.0)
    if to in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
        return value
    if isinstance(value.layer, _WHOLE):
        return value
    sign = r.layer(Sign, f"{node.name}/sign", value)
    size = r.layer(Floor, f"{node.name}/size", r.layer(Abs, f"{node.name}/abs", value))
    return r.layer(Multiply, node, sign, size)


_WHOLE = (Argmax, Argmin, Ceil, Floor, Round, Sign)


@reads("Clip")
def clip(r: Reader, node: Node) -> Value:
    """Clamp, or a bound on one side."""
    x = node.tensor()
    low, high = (node.float(i, name, unset) for i, name, unset in ((1, "min", -math.inf), (2, "max", math.inf)))
    if math.isfinite(low) and math.isfinite(high):
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


@reads(*_PAIRS)
def pair(r: Reader, node: Node) -> Value:
    """Two tensors, a tensor and a number, or a tensor and a constant tensor."""
    if node.kind == "Mod" and not node.get("fmod", 0):
        raise Refused("has the sign of the divisor (fmod 0), and Mod has that of the dividend")
    if node.kind == "Mul" and any(isinstance(value, Sizes) for value in node.inputs):
        sizes = [size for value in node.inputs for size in known_sizes(value)]
        if len(sizes) == 2:
            return Sizes((-1,), single=True)  # samples · something, which a Reshape works out
    first, *others = node.inputs
    for other in others:
        first = _pair(r, node, first, other)
    if not isinstance(first, Tensor):  # one input alone
        raise Refused("takes a constant alone")
    return first


def _pair(r: Reader, node: Node, a: Value | None, b: Value | None) -> Tensor:
    if isinstance(a, Sizes) or isinstance(b, Sizes):
        raise Refused("computes with the number of samples")
    if isinstance(a, Tensor) and isinstance(b, Fixed):
        merged = _with_bias(r, node, a, b) or _with_number(r, node, a, b)
        if merged is not None:
            return merged
    if isinstance(a, Fixed) and isinstance(b, Tensor):
        merged = _with_bias(r, node, b, a) or _number_first(r, node, a, b)
        if merged is not None:
            return merged
    return r.layer(_PAIRS[node.kind], node, *r.broadcast(node, a, b))


def _number(fixed: Fixed, x: Tensor) -> float | None:
    """The number that a constant is: of one entry, which is not trained, whatever file it comes from."""
    plain = fixed.array.size == 1 and fixed.array.ndim <= len(x.shape) + 1
    return float(fixed.array.reshape(())) if plain else None


def _with_number(r: Reader, node: Node, x: Tensor, fixed: Fixed) -> Tensor | None:
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


def _number_first(r: Reader, node: Node, fixed: Fixed, x: Tensor) -> Tensor | None:
    number = _number(fixed, x)
    if number is None or not math.isfinite(number):
        return None
    if node.kind == "Sub":
        return r.layer(ConstantSubtract, node, x, constant=number)
    if node.kind in _WITH_NUMBER:
        return r.layer(_WITH_NUMBER[node.kind], node, x, constant=number)
    constant = r.layer(Constant, f"{node.name}/constant", value=number, num_neurons=x.shape or (1,))
    return r.layer(_PAIRS[node.kind], node, constant, x)


def _with_bias(r: Reader, node: Node, x: Tensor, fixed: Fixed) -> Tensor | None:
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


@reads("Where")
def where(r: Reader, node: Node) -> Value:
    """Select by a truth."""
    if not any(isinstance(value, Tensor) for value in node.inputs):
        raise Refused("computes with the number of samples")
    truth, true, false = r.broadcast(node, *node.inputs)
    return r.layer(Select, node, truth, true, false, value=1.0, epsilon=0.5)
