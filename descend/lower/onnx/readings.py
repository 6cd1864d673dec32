"""ONNX operators as layers."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from descend.graph import (
    GRU,
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
    BatchNormalization,
    BilinearResize,
    Ceil,
    ChannelwiseFullyConnected,
    ChannelwiseScaleBias,
    ChannelwiseSoftmax,
    Clamp,
    Concatenation,
    Constant,
    ConstantSubtract,
    Convolution,
    Cos,
    Cosh,
    Deconvolution,
    Divide,
    Dropout,
    Elu,
    Embedding,
    Equal,
    Erf,
    Exp,
    Floor,
    FullyConnected,
    Gelu,
    Greater,
    GreaterEqual,
    Identity,
    InstanceNorm,
    LayerNorm,
    LeakyRelu,
    Less,
    LessEqual,
    LocalResponseNormalization,
    Log,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    LogSoftmax,
    MatMul,
    Max,
    MaxConstant,
    Min,
    MinConstant,
    Mod,
    MultiDimReduction,
    Multiply,
    Negative,
    NotEqualConstant,
    Pooling,
    Pow,
    Reciprocal,
    Relu,
    Round,
    Scale,
    Select,
    Selu,
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Slice,
    Softplus,
    Softsign,
    Sqrt,
    Square,
    Subtract,
    SubtractConstant,
    Tan,
    Tanh,
    TensorPermute,
    Tessellate,
    Upsample,
)
from descend.lower.onnx.reader import Fixed, Moved, Node, Reader, Refused, Sizes, Tensor, Value, reads

if TYPE_CHECKING:
    from descend.graph import Layer, Weights

__all__ = ["ENTRYWISE", "JOINABLE", "cut", "fully_connected", "wanted_sizes"]

Shape = tuple[int, ...]

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


@reads("LeakyRelu", "Elu", "Selu", "HardSigmoid", "HardSwish", "Gelu", "PRelu")
def activation(r: Reader, node: Node) -> Value:
    """Activations with a number to set."""
    x = node.tensor()
    match node.kind:
        case "LeakyRelu":
            return r.layer(LeakyRelu, node, x, negative_slope=_nonzero(node, "alpha", node.get("alpha", 0.01)))
        case "PRelu":
            slope = node.fixed(1).array
            if slope.size != 1:
                return _prelu(r, node, x)
            return r.layer(LeakyRelu, node, x, negative_slope=_nonzero(node, "slope", float(slope.reshape(()))))
        case "Elu":
            return r.layer(Elu, node, x, alpha=_nonzero(node, "alpha", node.get("alpha", 1.0)))
        case "Selu":
            if abs(node.get("alpha", 1.67326) - 1.67326) > 1e-4 or abs(node.get("gamma", 1.0507) - 1.0507) > 1e-4:
                raise Refused("has an alpha or gamma of its own")
            return r.layer(Selu, node, x)
        case "Gelu":
            return r.layer(Gelu, node, x) if node.get("approximate", "none") in ("tanh", b"tanh") else _gelu(r, node, x)
        case _:
            alpha, beta = (1 / 6, 0.5) if node.kind == "HardSwish" else (node.get("alpha", 0.2), node.get("beta", 0.5))
            line = r.layer(AddConstant, f"{node.name}/line", _times(r, f"{node.name}/slope", x, alpha), constant=beta)
            gate = r.layer(Clamp, node, line, min=0.0, max=1.0)
            return r.layer(Multiply, node, x, gate) if node.kind == "HardSwish" else gate


def _prelu(r: Reader, node: Node, x: Tensor) -> Tensor:
    """max(x, 0) + slope · min(x, 0), each channel with a slope of its own."""
    below = r.layer(MinConstant, f"{node.name}/below", x, constant=0.0)
    line = r.layer(Multiply, f"{node.name}/line", *r.broadcast(node, below, node.fixed(1)))
    return r.layer(Add, node, r.layer(Relu, f"{node.name}/above", x), line)


@reads("Celu", "Mish")
def smooth(r: Reader, node: Node) -> Value:
    """α Elu(x / α), or x tanh(log(1 + eˣ))."""
    x = node.tensor()
    if node.kind == "Mish":
        gate = r.layer(Tanh, f"{node.name}/gate", r.layer(Softplus, f"{node.name}/softplus", x))
        return r.layer(Multiply, node, x, gate)
    alpha = _nonzero(node, "alpha", node.get("alpha", 1.0))
    inner = r.layer(Elu, f"{node.name}/elu", _times(r, f"{node.name}/scaled", x, 1 / alpha))
    return _times(r, node.name, inner, alpha)


def _nonzero(node: Node, what: str, value: float) -> float:
    if value == 0:
        raise Refused(f"has {what} 0, which means the default in a description")
    return value


def _times(r: Reader, name: str, x: Tensor, factor: float) -> Tensor:
    return r.layer(Scale, name, x, constant=factor)


def _gelu(r: Reader, node: Node, x: Tensor) -> Tensor:
    """x (1 + erf(x / √2)) / 2."""
    error = r.layer(Erf, f"{node.name}/erf", _times(r, f"{node.name}/scaled", x, math.sqrt(0.5)))
    gate = r.layer(AddConstant, f"{node.name}/gate", error, constant=1.0)
    return r.layer(Multiply, node, _times(r, f"{node.name}/half", x, 0.5), gate)


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
        sizes = [size for value in node.inputs for size in _sizes(value)]
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
        return _times(r, node.name, x, 1 / number)
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


# Matrices and kernels


@reads("Gemm")
def gemm(r: Reader, node: Node) -> Value:
    """FullyConnected."""
    x, matrix = node.tensor(0, 1), node.fixed(1)
    if node.get("transA", 0) or node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1:
        raise Refused("has transA, alpha or beta of its own")
    return fully_connected(r, node, x, matrix, not node.get("transB", 0), node.given(2))


def fully_connected(
    r: Reader, node: Node, x: Tensor, matrix: Fixed, inputs_first: bool, bias: Value | None = None
) -> Tensor:
    """A product of the last dimension of x with a matrix."""
    if matrix.base is not None and r.turned(Fixed(matrix.array.T, matrix.base)):
        matrix, inputs_first = Fixed(matrix.array.T, matrix.base), not inputs_first
    turned = r.turned(matrix)
    transpose = inputs_first is not turned
    neurons = matrix.array.shape[1 if inputs_first else 0]
    weights = [r.weights(matrix, f"{node.name}/matrix", column_major=True, turned=turned)]
    if bias is not None:
        if not isinstance(bias, Fixed):
            raise Refused("computes its bias from the data")
        whole = np.broadcast_to(bias.array.reshape(-1), (neurons,))
        weights.append(r.weights(Fixed(whole, bias.name), f"{node.name}/bias"))
    if len(x.shape) == 1:
        kept: dict[str, Any] = {"num_neurons": neurons, "has_bias": bias is not None, "transpose": transpose}
        return r.layer(FullyConnected, node, x, weights=weights, **kept)
    rows = r.reshaped(x, (prod(x.shape[:-1]), x.shape[-1]), f"{node.name}/rows")
    kept = {"output_channel_dims": neurons, "bias": bias is not None, "transpose": transpose}
    y = r.layer(ChannelwiseFullyConnected, node, rows, weights=weights, **kept)
    return r.reshaped(y, (*x.shape[:-1], neurons), f"{node.name}/stacked")


@reads("MatMul")
def matmul(r: Reader, node: Node) -> Value:
    """A product with a constant matrix, or of two tensors."""
    a, b = node.inputs
    if isinstance(a, Tensor) and isinstance(b, Fixed) and b.array.ndim == 2:
        return fully_connected(r, node, node.tensor(0), b, inputs_first=True)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        raise Refused("computes with the number of samples")
    dims = max(len(one.shape) for one in (a, b) if isinstance(one, Tensor))
    left, right = (r.as_tensor(one, node, dims) for one in (a, b))
    if len(left.shape) != len(right.shape) or dims < 2:
        raise Refused(f"multiplies (samples, {left.shape}) with (samples, {right.shape})")
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (_stacked(r, node, r.widened(one, (*stack, *one.shape[-2:]), node)) for one in (left, right))
    y = r.layer(MatMul, node, left, right)
    return r.reshaped(y, (*stack, *y.shape[-2:]), f"{node.name}/stacked")


def _stacked(r: Reader, node: Node, x: Tensor) -> Tensor:
    """At most one dimension before the rows and columns."""
    return x if len(x.shape) < 4 else r.reshaped(x, (prod(x.shape[:-2]), *x.shape[-2:]), node)


def _window(r: Reader, node: Node, x: Tensor, size: Shape, fill: float | None) -> tuple[Tensor, dict[str, Any]]:
    """What a window goes over, and its stride, padding and dilation.

    Where the ends of a dimension are padded differently, x is padded before it: with `fill`, if there is one.
    """
    space = x.shape[1:]
    dims = len(size)
    strides, dilations = tuple(node.get("strides", [1] * dims)), tuple(node.get("dilations", [1] * dims))
    auto = node.get("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    pads = list(node.get("pads", [0] * 2 * dims))
    if auto.startswith("SAME"):
        spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
        needed = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(space, strides, spans, strict=True)]
        small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
        pads = [*small, *large] if auto == "SAME_UPPER" else [*large, *small]
    if node.get("ceil_mode", 0):
        spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
        ends = zip(space, spans, strides, pads[:dims], pads[dims:], strict=True)
        pads[dims:] = [end + _over(n + begin, end, k, s) for n, k, s, begin, end in ends]
    if pads[:dims] == pads[dims:]:
        return x, {"stride": strides, "padding": tuple(pads[:dims]), "dilation": dilations}
    if fill is None:
        raise Refused(f"pads the two ends of a dimension differently ({pads}) and leaves padding out of its means")
    sides = [(0, 0), *zip(pads[:dims], pads[dims:], strict=True)]
    return _padded(r, node, x, sides, fill), {"stride": strides, "padding": (0,) * dims, "dilation": dilations}


def _over(begun: int, end: int, span: int, stride: int) -> int:
    """How far the last window hangs over the end, where it begins before the padding there."""
    count = -(-(begun + end - span) // stride) + 1
    count -= (count - 1) * stride >= begun
    return (count - 1) * stride + span - begun - end


def _padded(r: Reader, node: Node, x: Tensor, sides: list[tuple[int, int]], fill: float) -> Tensor:
    """x with so many entries of one value before and behind each dimension; fewer than none cut some off."""
    for axis, (before, behind) in enumerate(sides):
        size = x.shape[axis]
        if size + min(before, 0) + min(behind, 0) < 1:
            raise Refused("leaves nothing")
        x = cut(r, f"{node.name}/cut{axis}", x, axis, -min(before, 0), size + min(behind, 0))
        parts = [x]
        for count, place in ((before, 0), (behind, 2)):
            if count > 0:
                shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
                name = f"{node.name}/pad{axis}_{place}"
                parts.insert(place, r.layer(Constant, name, value=fill, num_neurons=shape))
        if len(parts) > 1:
            x = r.layer(Concatenation, f"{node.name}/padded{axis}", *parts, axis=axis)
    return x


@reads("Pad")
def pad(r: Reader, node: Node) -> Value:
    """Constants before and behind; mirrored or repeated entries a few at a time."""
    x, mode = node.tensor(), _text(node.get("mode", "constant"))
    how: Any = mode  # numpy's names for them are the same
    pads, dims = node.ints(1, "pads") or (), len(x.shape) + 1
    axes = node.ints(3, "axes") or tuple(range(len(pads) // 2))
    sides = [(0, 0)] * dims
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides[axis % dims] = (before, behind)
    if sides[0] != (0, 0):
        raise Refused("adds samples")
    if mode == "constant":
        return _padded(r, node, x, sides[1:], node.float(2, "value", 0.0))
    for axis, (before, behind) in enumerate(sides[1:]):
        if (before, behind) != (0, 0):
            x = _extended(r, node, x, axis, np.pad(np.arange(x.shape[axis]), _counts(node, before, behind), how))
    return x


def _counts(node: Node, before: int, behind: int) -> tuple[int, int]:
    if min(before, behind) < 0 or max(before, behind) > _FEW:
        raise Refused(f"repeats {before} and {behind} entries, and 0 to {_FEW} are put together here")
    return before, behind


def _extended(r: Reader, node: Node, x: Tensor, axis: int, places: np.ndarray[Any, Any]) -> Tensor:
    """Entries at places along an axis, of which the middle ones are all of x in their order."""
    own = np.arange(x.shape[axis])
    begin = next(i for i in range(len(places)) if (places[i : i + len(own)] == own).all())
    parts: list[Tensor] = []
    for i, place in enumerate([*places[:begin], None, *places[begin + len(own) :]]):
        name = f"{node.name}/{axis}_{i}"
        parts.append(x if place is None else cut(r, name, x, axis, int(place), int(place) + 1))
    return r.layer(Concatenation, f"{node.name}/padded{axis}", *parts, axis=axis)


@reads("Conv", "ConvTranspose")
def convolution(r: Reader, node: Node) -> Value:
    """Convolution or Deconvolution."""
    kernel, bias = node.fixed(1), node.given(2)
    dims = kernel.array.ndim - 2
    x = node.tensor(0, dims + 1)
    group = node.get("group", 1)
    transposed = node.kind == "ConvTranspose"
    x, fields = _window(r, node, x, kernel.array.shape[2:], None if transposed else 0.0)
    kind: type[Layer] = Convolution
    channels = kernel.array.shape[0]
    if transposed:
        kind, channels = Deconvolution, kernel.array.shape[1] * group
        fields["output_padding"] = tuple(node.get("output_padding", [0] * dims))
        if "output_shape" in node.attributes:
            raise Refused("has output_shape in place of pads")
    weights = [r.weights(kernel, f"{node.name}/kernel")]
    if bias is not None:
        weights.append(r.weights(node.fixed(2), f"{node.name}/bias"))
    size = kernel.array.shape[2:]
    own: dict[str, Any] = {"num_dims": dims, "out_channels": channels, "kernel_size": size, "groups": group}
    return r.layer(kind, node, x, weights=weights, has_bias=bias is not None, **own, **fields)


@reads("MaxPool", "AveragePool")
def pooling(r: Reader, node: Node) -> Value:
    """Pooling."""
    size = tuple(node.get("kernel_shape", ()))
    mode = "max" if node.kind == "MaxPool" else "average" if node.get("count_include_pad", 0) else "average_no_pad"
    counted = 0.0 if mode == "average" and not node.get("ceil_mode", 0) else None
    x, window = _window(r, node, node.tensor(), size, -math.inf if mode == "max" else counted)
    if node.outputs > 1 or any(one != 1 for one in window["dilation"]):
        raise Refused("hands out places, or has dilations")
    own: dict[str, Any] = {"pool_mode": mode, "num_dims": len(size), "has_vectors": True, "pool_dims": size}
    return r.layer(Pooling, node, x, pool_strides=window["stride"], pool_pads=window["padding"], **own)


@reads("GlobalAveragePool", "GlobalMaxPool")
def global_pooling(r: Reader, node: Node) -> Value:
    """A reduction over space."""
    x = node.tensor()
    axes = tuple(range(2, len(x.shape) + 1))
    return _reduced(r, node, x, "mean" if node.kind == "GlobalAveragePool" else "max", axes, True)


# Normalization


@reads("BatchNormalization")
def batch_normalization(r: Reader, node: Node) -> Value:
    """BatchNormalization; in training it follows this package's formula."""
    if node.get("training_mode", 0) or node.outputs > 1:
        raise Refused("is written for training")
    weights = [r.weights(node.fixed(i), f"{node.name}/{i}") for i in range(1, 5)]
    epsilon = _nonzero(node, "epsilon", node.get("epsilon", 1e-5))
    return r.layer(
        BatchNormalization, node, node.tensor(), weights=weights, epsilon=epsilon, decay=node.get("momentum", 0.9)
    )


@reads("LayerNormalization")
def layer_normalization(r: Reader, node: Node) -> Value:
    """LayerNorm."""
    x, axis, scale, bias = node.tensor(), node.get("axis", -1), node.fixed(1), node.given(2)
    start = axis - 1 if axis > 0 else axis + len(x.shape)
    if start < 0 or node.outputs > 1:
        raise Refused("normalizes over samples, or hands out its statistics")
    form = x.shape[start:]
    pairs = [(scale, "scale"), *([(node.fixed(2), "bias")] if bias is not None else [])]
    weights = [
        r.weights(Fixed(np.broadcast_to(one.array, form), one.name), f"{node.name}/{what}") for one, what in pairs
    ]
    fields: dict[str, Any] = {"scale": True, "bias": bias is not None, "epsilon": node.get("epsilon", 1e-5)}
    return r.layer(LayerNorm, node, x, weights=weights, start_dim=start, **fields)


@reads("InstanceNormalization")
def instance_normalization(r: Reader, node: Node) -> Value:
    """InstanceNorm, then a scale and a bias for each channel."""
    x, scale, bias = node.tensor(), node.fixed(1), node.fixed(2)
    y = r.layer(InstanceNorm, f"{node.name}/norm", x, epsilon=node.get("epsilon", 1e-5))
    both = Fixed(np.stack([scale.array, bias.array], 1), f"{scale.name}_and_bias" if scale.name else None)
    weights = r.weights(both, f"{node.name}/affine", column_major=True)
    return r.layer(ChannelwiseScaleBias, node, y, weights=[weights])


@reads("LRN")
def local_response_normalization(r: Reader, node: Node) -> Value:
    """LocalResponseNormalization, whose α is not divided by the width."""
    width = node.get("size", 0)
    fields = {
        "lrn_alpha": node.get("alpha", 1e-4) / width,
        "lrn_beta": node.get("beta", 0.75),
        "lrn_k": node.get("bias", 1.0),
    }
    return r.layer(LocalResponseNormalization, node, node.tensor(), window_width=width, **fields)


@reads("Softmax", "LogSoftmax")
def softmax(r: Reader, node: Node) -> Value:
    """ChannelwiseSoftmax along a dimension."""
    x = node.tensor()
    axis = node.get("axis", -1)
    axis = axis - 1 if axis > 0 else axis + len(x.shape)
    if axis < 0:
        raise Refused("takes the softmax over samples")
    if node.kind == "LogSoftmax":
        if x.shape[axis] != prod(x.shape):
            raise Refused("has other dimensions beside that of the softmax")
        return r.layer(LogSoftmax, node, x)
    return r.layer(ChannelwiseSoftmax, node, x, dim=axis, single_dim_mode=True)


# Sequences


@reads("GRU")
def gru(r: Reader, node: Node) -> Value | tuple[Value, ...]:
    """A GRU of one layer, whose gates ONNX has in the order z, r, n."""
    x, size, first = node.given(0), node.get("hidden_size", 0), node.get("layout", 0)
    plain = _text(node.get("direction", "forward")) == "forward" and node.get("linear_before_reset", 0) == 1
    if not plain or "activations" in node.attributes or "clip" in node.attributes or node.given(4) is not None:
        raise Refused("goes another way than forward, or has other gates or lengths than torch's GRU")
    if first and isinstance(x, Tensor) and len(x.shape) == 2 and not x.joined:
        sequence = x
    elif not first and isinstance(x, Moved) and len(x.groups) == 3 and x.groups[1] == (None,):
        sequence = Tensor(x.layer, tuple(one for (one,) in (x.groups[0], x.groups[2]) if one is not None))
    else:
        raise Refused("takes a sequence for each sample: (length, samples, size), or with layout 1 the samples first")
    y = r.layer(GRU, node, sequence, _start(r, node, size), weights=_gates(r, node, size), hidden_size=size)
    length = y.shape[0]
    last = cut(r, f"{node.name}/last", y, 0, length - 1, length) if node.outputs > 1 else y
    if first:
        steps = r.reshaped(y, (length, 1, size), f"{node.name}/steps")
        return (steps, last) if node.outputs > 1 else steps
    steps = Moved(r.reshaped(y, (length, 1, size), f"{node.name}/steps").layer, ((length,), (1,), (None,), (size,)))
    return (steps, Moved(last.layer, ((1,), (None,), (size,)))) if node.outputs > 1 else steps


def _start(r: Reader, node: Node, size: int) -> Tensor:
    """The first hidden state, (1, size) for each sample; zeros where none is given."""
    given = node.given(5)
    if given is None or (isinstance(given, Fixed) and not given.array.any()):
        return r.layer(Constant, f"{node.name}/start", value=0.0, num_neurons=(1, size))
    if isinstance(given, Moved) and given.groups == ((1,), (None,), (size,)):
        return Tensor(given.layer, (1, size))
    if isinstance(given, Tensor) and node.get("layout", 0) and given.shape == (1, size):
        return given
    raise Refused("has a first state that is not (1, samples, hidden_size)")


def _gates(r: Reader, node: Node, size: int) -> list[Weights]:
    """Matrices and biases with the gates in the order r, z, n."""
    z, reset, n = (np.arange(i * size, (i + 1) * size) for i in range(3))
    rows = np.concatenate([reset, z, n])
    bias = node.given(3)
    both = node.fixed(3).array[0] if bias is not None else np.zeros(6 * size, np.float32)
    arrays = (
        (node.fixed(1), node.fixed(1).array[0][rows], "ih_matrix"),
        (node.fixed(2), node.fixed(2).array[0][rows], "hh_matrix"),
        (bias, both[: 3 * size][rows], "ih_bias"),
        (bias, both[3 * size :][rows], "hh_bias"),
    )
    return [
        r.weights(
            Fixed(array, f"{one.name if isinstance(one, Fixed) and one.name else node.name}_{what}"),
            node.name,
            column_major=what.endswith("matrix"),
        )
        for one, array, what in arrays
    ]


# Shapes


@reads("Shape")
def shape_of(r: Reader, node: Node) -> Value:
    """The sizes of a tensor."""
    (value,) = node.inputs
    if isinstance(value, Tensor):
        whole = (None, *value.shape)
        return Sizes(whole[node.get("start", 0) : node.get("end", len(whole))])
    raise Refused("asks for the shape of a shape")


@reads("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(r: Reader, node: Node) -> Value:
    """Reshape within each sample."""
    value = node.given(0)
    if isinstance(value, Sizes):
        return Sizes(value.sizes, single=node.kind == "Squeeze" or (node.kind == "Reshape" and not wanted_sizes(node)))
    if not isinstance(value, Tensor):
        raise Refused("takes a constant")
    whole = [None, *value.shape]
    match node.kind:
        case "Flatten":
            if node.get("axis", 1) != 1:
                raise Refused(f"has axis {node.get('axis', 1)}, which joins samples with other dimensions")
            return r.reshaped(value, (prod(value.shape),), node.name)
        case "Squeeze":
            axes = node.ints(1, "axes") or tuple(i for i, size in enumerate(whole) if size == 1)
            gone = {axis % len(whole) for axis in axes}
            if 0 in gone:
                raise Refused("takes away the dimension of the samples")
            return r.reshaped(
                value, tuple(s for i, s in enumerate(whole) if i not in gone and s is not None), node.name
            )
        case "Unsqueeze":
            axes = node.ints(1, "axes") or ()
            new = [axis % (len(whole) + len(axes)) for axis in axes]
            if 0 in new:
                raise Refused("puts a dimension before that of the samples")
            rest = iter(value.shape)
            return r.reshaped(
                value, tuple(1 if i in new else next(rest) for i in range(1, len(whole) + len(axes))), node.name
            )
        case _:
            wanted = wanted_sizes(node)
            if joined := _joined(r, value, wanted):
                return joined
            return r.reshaped(replace(value, joined=0), _filled(r, value, wanted, node), node.name)


def _joined(r: Reader, x: Tensor, wanted: list[int | None]) -> Tensor | None:
    """A Reshape that joins samples with dimensions behind them and leaves the others: (samples · heads, ...)."""
    first, *rest = wanted or [None]
    kept = tuple(
        x.shape[i] if size == 0 and x.joined == 0 and i < len(x.shape) else size for i, size in enumerate(rest)
    )
    count = len(x.shape) - len(kept)
    if count < 1 or kept != x.shape[count:]:
        return None
    size = prod(x.shape[:count])
    alone = first is None or (first == r.batch and size == 1)
    return None if alone or (first != -1 and first != (r.batch or 0) * size) else replace(x, joined=count)


def wanted_sizes(node: Node) -> list[int | None]:
    """The second input of a Reshape."""
    value = node.given(1)
    if isinstance(value, Sizes):
        return list(value.sizes)
    return [int(size) for size in node.fixed(1).array]


def _filled(r: Reader, x: Tensor, wanted: list[int | None], node: Node) -> Shape:
    """The sizes of a sample that a Reshape asks for; 0 keeps a size and −1 is worked out."""
    whole = [None, *x.shape]
    keep = not node.get("allowzero", 0)
    sizes = [whole[i] if size == 0 and keep and i < len(whole) else size for i, size in enumerate(wanted)]
    first, *rest = sizes or [-2]
    if None in rest or (first is not None and first not in (-1, r.batch)):
        raise Refused(f"joins samples with other dimensions: {wanted}")
    known = prod(size for size in rest if size not in (-1, None))
    if -1 in rest:
        if first == -1 or not known or prod(x.shape) % known:
            raise Refused(f"makes {wanted} of {x.shape}")
        rest = [prod(x.shape) // known if size == -1 else size for size in rest]
    return tuple(size for size in rest if size is not None)


@reads("DepthToSpace", "SpaceToDepth")
def space_and_depth(r: Reader, node: Node) -> Value:
    """Blocks of an image as channels, or the other way."""
    x, b = node.tensor(0, 3), node.get("blocksize", 1)
    channels, height, width = x.shape
    if node.kind == "SpaceToDepth":
        split, axes = (channels, height // b, b, width // b, b), (2, 4, 0, 1, 3)
        shape = (channels * b * b, height // b, width // b)
    else:
        shape = (channels // (b * b), height * b, width * b)
        columns_first = _text(node.get("mode", "DCR")) == "CRD"
        split = (shape[0], b, b, height, width) if columns_first else (b, b, shape[0], height, width)
        axes = (0, 3, 1, 4, 2) if columns_first else (2, 3, 0, 4, 1)
    apart = r.reshaped(x, split, f"{node.name}/apart")
    return r.reshaped(r.layer(TensorPermute, f"{node.name}/turned", apart, axes=axes), shape, node.name)


@reads("Transpose")
def transpose(r: Reader, node: Node) -> Value:
    """TensorPermute."""
    x = node.tensor()
    perm = node.get("perm", list(range(len(x.shape), -1, -1)))
    if perm[0] != 0:
        raise Refused(f"moves the dimension of the samples (perm {list(perm)})")
    return r.layer(TensorPermute, node, x, axes=[axis - 1 for axis in perm[1:]])


def _axis(axis: int, dims: int) -> int:
    """An axis within a sample of so many dimensions."""
    own = axis % (dims + 1) - 1
    if own < 0:
        raise Refused("works along the dimension of the samples")
    return own


@reads("Concat")
def concat(r: Reader, node: Node) -> Value:
    """Concatenation, of tensors or of sizes."""
    if not any(isinstance(value, Tensor) for value in node.inputs):
        return Sizes(tuple(size for value in node.inputs for size in _sizes(value)))
    dims = max(len(value.shape) for value in node.inputs if isinstance(value, Tensor))
    axis = _axis(node.get("axis", 0), dims)
    parts = [r.as_tensor(value, node, dims) for value in node.inputs]
    return r.layer(Concatenation, node, *parts, axis=axis)


def _sizes(value: Value | None) -> tuple[int | None, ...]:
    if isinstance(value, Sizes):
        return value.sizes
    if isinstance(value, Fixed):
        return tuple(int(size) for size in np.atleast_1d(value.array))
    raise Refused("joins sizes with data")


def cut(r: Reader, name: str, x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Entries along an axis of the sample from `begin` up to, without, `end`."""
    if (begin, end) == (0, x.shape[axis]):
        return x
    # A Slice gives each child a piece of its own; behind an Identity one piece has any number of children.
    return r.layer(Identity, name, r.layer(Slice, f"{name}/cut", x, axis=axis, slice_points=(begin, end)))


@reads("Slice")
def piece(r: Reader, node: Node) -> Value:
    """Slice, of a tensor or of sizes."""
    value = node.given(0)
    begins, ends = node.ints(1, "starts") or (), node.ints(2, "ends") or ()
    axes = node.ints(3, "axes") or tuple(range(len(begins)))
    steps = node.ints(4, "steps") or (1,) * len(begins)
    if isinstance(value, Sizes):
        ((begin, end, step),) = zip(begins, ends, steps, strict=True)
        return Sizes(value.sizes[begin:end:step])
    x = node.tensor()
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        if axis % (len(x.shape) + 1) == 0 and begin == 0 and step == 1 and end >= 2**31 - 1:
            continue  # all samples
        own = _axis(axis, len(x.shape))
        first, last, _ = slice(begin, end).indices(x.shape[own])
        if step != 1 or last <= first:
            raise Refused(f"has step {step}, or cuts out nothing")
        x = cut(r, node.name, x, own, first, last)
    return x


@reads("Split")
def split(r: Reader, node: Node) -> Value | tuple[Value, ...]:
    """A Slice for each piece."""
    x = node.tensor()
    axis = _axis(node.get("axis", 0), len(x.shape))
    size = -(-x.shape[axis] // node.outputs)
    sizes = node.ints(1, "split") or [min(size, x.shape[axis] - i * size) for i in range(node.outputs)]
    ends = np.cumsum(sizes).tolist()
    pieces = tuple(
        cut(r, f"{node.name}/{i}", x, axis, end - own, end)
        for i, (own, end) in enumerate(zip(sizes, ends, strict=True))
    )
    return pieces[0] if len(pieces) == 1 else pieces


@reads("Gather")
def gather(r: Reader, node: Node) -> Value:
    """A table of vectors, or entries at constant places."""
    data, index = node.inputs[:2]
    if isinstance(data, Sizes):
        places = node.fixed(1).array
        return Sizes(tuple(data.sizes[int(i)] for i in places.reshape(-1)), single=places.ndim == 0)
    if isinstance(data, Fixed):
        return _embedded(r, node, data)
    x, places = node.tensor(), node.fixed(1).array if isinstance(index, Fixed) else None
    if places is None or places.ndim > 1:
        raise Refused("takes entries at places that are computed from the data")
    axis = _axis(node.get("axis", 0), len(x.shape))
    size = x.shape[axis]
    found = np.where(places < 0, places + size, places).reshape(-1)
    if not ((found >= 0) & (found < size)).all():
        raise Refused(f"takes places outside 0 to {size - 1}")
    y = _picked(r, node, x, axis, found)
    return y if places.ndim else r.reshaped(y, x.shape[:axis] + x.shape[axis + 1 :], f"{node.name}/single")


def _embedded(r: Reader, node: Node, table: Fixed) -> Tensor:
    x = node.tensor(1)
    if node.get("axis", 0) != 0 or table.array.ndim != 2:
        raise Refused("looks up something else than rows of a matrix")
    count, size = table.array.shape
    weights = r.weights(table, f"{node.name}/table", column_major=True, turned=True)
    return r.layer(Embedding, node, x, weights=[weights], num_embeddings=count, embedding_dim=size)


def _picked(r: Reader, node: Node, x: Tensor, axis: int, places: np.ndarray[Any, Any]) -> Tensor:
    """Entries along an axis: a run of them, all of them repeated, each of them repeated, or a few."""
    size, count = x.shape[axis], len(places)
    if (np.diff(places) == 1).all():
        return cut(r, node.name, x, axis, int(places[0]), int(places[-1]) + 1)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if (places == np.arange(count) % size).all():
        return r.layer(Tessellate, node, x, dims=shape)
    if count % size == 0 and (places == np.repeat(np.arange(size), count // size)).all():
        wide = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
        apart = r.reshaped(x, wide, f"{node.name}/apart")
        repeated = (*wide[: axis + 1], count // size, *wide[axis + 2 :])
        return r.reshaped(r.layer(Tessellate, node, apart, dims=repeated), shape, f"{node.name}/together")
    if count > _FEW:
        raise Refused(f"takes {count} entries in an order of its own, and at most {_FEW} are put together here")
    parts = [cut(r, f"{node.name}/{i}", x, axis, int(place), int(place) + 1) for i, place in enumerate(places)]
    return r.layer(Concatenation, node, *parts, axis=axis)


_FEW = 64


@reads("Expand", "Tile")
def expand(r: Reader, node: Node) -> Value:
    """Tessellate."""
    value = node.given(0)
    wanted = wanted_sizes(node)
    if node.kind == "Tile":
        x = node.tensor()
        if wanted[0] != 1:
            raise Refused("repeats samples")
        return r.widened(x, tuple(s * int(t or 1) for s, t in zip(x.shape, wanted[1:], strict=True)), node)
    if isinstance(value, Fixed) and wanted[0] not in (None, r.batch):
        if value.array.size == 1:
            return _everywhere(r, node, value.array, tuple(wanted))
        raise Refused("gives a constant a first dimension that is not the samples'")
    dims = len(value.shape) + 1 if isinstance(value, Tensor) else len(wanted)
    if len(wanted) > dims:
        raise Refused("puts dimensions before that of the samples")
    sizes = tuple(int(size or 1) for size in (wanted[1:] if len(wanted) == dims else wanted))
    x = r.as_tensor(value, node, dims - 1)
    try:
        shape = np.broadcast_shapes(x.shape, sizes)
    except ValueError:
        raise Refused(f"makes {sizes} of {x.shape}") from None
    return r.widened(r.reshaped(x, (1,) * (len(shape) - len(x.shape)) + x.shape, node), shape, node)


@reads("ConstantOfShape")
def constant_of_shape(r: Reader, node: Node) -> Value:
    """Constant, for every sample."""
    return _everywhere(r, node, node.get("value", np.zeros(1, np.float32)), _sizes(node.given(0)))


def _everywhere(r: Reader, node: Node, value: Any, sizes: tuple[int | None, ...]) -> Tensor | Moved:
    """One number in all entries of sizes of which None stands for the samples."""
    if sizes.count(None) != 1 or len(sizes) < 2 or -1 in sizes:
        raise Refused("computes with the number of samples")
    shape = tuple(size for size in sizes if size is not None)
    y = r.layer(Constant, node, value=float(np.asarray(value).reshape(())), num_neurons=shape)
    return y if sizes[0] is None else Moved(y.layer, tuple((size,) for size in sizes))


# Reductions


@reads("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
def reduction(r: Reader, node: Node) -> Value:
    """MultiDimReduction."""
    x = node.tensor()
    axes = node.ints(1, "axes")
    if axes is None:
        raise Refused("reduces over the samples")
    mode = {"ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "product"}.get(node.kind, "sum")
    if node.kind in ("ReduceL2", "ReduceSumSquare"):
        x = r.layer(Square, f"{node.name}/square", x)
    elif node.kind == "ReduceL1":
        x = r.layer(Abs, f"{node.name}/abs", x)
    y = _reduced(r, node, x, mode, axes, bool(node.get("keepdims", 1)))
    return r.layer(Sqrt, f"{node.name}/root", y) if node.kind == "ReduceL2" else y


def _reduced(r: Reader, node: Node, x: Tensor, mode: str, axes: tuple[int, ...], keep: bool) -> Tensor:
    own = sorted({_axis(axis, len(x.shape)) for axis in axes})
    y = r.layer(MultiDimReduction, node, x, mode="sum" if mode == "mean" else mode, axes=own)
    if mode == "mean":
        y = _times(r, f"{node.name}/mean", y, 1 / prod(x.shape[axis] for axis in own))
    left = tuple(size for axis, size in enumerate(x.shape) if axis not in own)
    kept = tuple(1 if axis in own else size for axis, size in enumerate(x.shape))
    return r.reshaped(Tensor(y.layer, left), kept if keep else left, f"{node.name}/shape")


@reads("ArgMax", "ArgMin")
def extremum(r: Reader, node: Node) -> Value:
    """Argmax or Argmin of one dimension."""
    x = node.tensor(0, 1)
    _axis(node.get("axis", 0), 1)
    if node.get("select_last_index", 0):
        raise Refused("takes the last of equal entries, and the first is taken here")
    y = r.layer(Argmax if node.kind == "ArgMax" else Argmin, node, x)
    return y if node.get("keepdims", 1) else Tensor(y.layer, ())


@reads("Resize")
def resize(r: Reader, node: Node) -> Value:
    """Upsample by whole factors, or BilinearResize of images."""
    x = node.tensor()
    scales, sizes = node.given(2), node.given(3)
    if isinstance(sizes, Fixed):
        after = tuple(int(size) for size in sizes.array[1:])
    elif isinstance(scales, Fixed):
        after = tuple(math.floor(size * scale) for size, scale in zip(x.shape, scales.array[1:].tolist(), strict=True))
    else:
        raise Refused("computes its size from the data")
    mode, place, rounding = (
        _text(node.get(name, unset))
        for name, unset in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    )
    channels_stay = after[0] == x.shape[0]
    whole = all(a % b == 0 for a, b in zip(after, x.shape, strict=True))
    # Of these pairs each gives entry ⌊i / factor⌋ for place i.
    repeats = (place, rounding) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if channels_stay and mode == "nearest" and whole and repeats:
        factors = tuple(a // b for a, b in zip(after[1:], x.shape[1:], strict=True))
        own: dict[str, Any] = {"num_dims": len(factors), "has_vectors": True, "scale_factors": factors}
        return r.layer(Upsample, node, x, upsample_mode="nearest", **own)
    if channels_stay and len(after) == 3 and mode == "linear" and place in ("half_pixel", "pytorch_half_pixel"):
        return r.layer(BilinearResize, node, x, height=after[1], width=after[2])
    raise Refused(f"has mode {mode}, {place}, from {x.shape} to {after}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value
