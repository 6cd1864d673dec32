"""Operators: a node each, or a few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx

from descend.errors import Unsupported
from descend.graph import OperatorLayer, ops
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, IntegerReduction, ToFormat
from descend.onnx.elementwise import over_sample
from descend.onnx.graph_exporter import exports
from descend.onnx.graph_importer import LARGEST_EXACT
from descend.onnx.values import HALVES, INTEGERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.graph import PlannedLayer
    from descend.onnx.graph_exporter import GraphExporter

    Function = Callable[..., str]

__all__ = ["missing"]


# Operators that ONNX has under its own name, with the same inputs.
_NAMED: dict[type[ops.Operator], str] = {
    ops.Abs: "Abs",
    ops.Negative: "Neg",
    ops.Sign: "Sign",
    ops.Round: "Round",
    ops.Ceil: "Ceil",
    ops.Floor: "Floor",
    ops.Reciprocal: "Reciprocal",
    ops.Sqrt: "Sqrt",
    ops.Exp: "Exp",
    ops.Log: "Log",
    ops.Cos: "Cos",
    ops.Sin: "Sin",
    ops.Tan: "Tan",
    ops.Acos: "Acos",
    ops.Asin: "Asin",
    ops.Atan: "Atan",
    ops.Cosh: "Cosh",
    ops.Sinh: "Sinh",
    ops.Tanh: "Tanh",
    ops.Acosh: "Acosh",
    ops.Asinh: "Asinh",
    ops.Atanh: "Atanh",
    ops.Erf: "Erf",
    ops.Selu: "Selu",
    ops.Softplus: "Softplus",
    ops.Softsign: "Softsign",
    ops.Add: "Add",
    ops.Subtract: "Sub",
    ops.Multiply: "Mul",
    ops.Divide: "Div",
    ops.Pow: "Pow",
    ops.Max: "Max",
    ops.Min: "Min",
}
_COMPARED: dict[type[ops.Operator], str] = {
    ops.Equal: "Equal",
    ops.Less: "Less",
    ops.LessEqual: "LessOrEqual",
    ops.Greater: "Greater",
    ops.GreaterEqual: "GreaterOrEqual",
}
_WITH_CONSTANT: dict[type[ops.Operator], str] = {
    ops.AddConstant: "Add",
    ops.Scale: "Mul",
    ops.SubtractConstant: "Sub",
    ops.MaxConstant: "Max",
    ops.MinConstant: "Min",
}
_COMPARED_WITH_CONSTANT: dict[type[ops.Operator], str] = {
    ops.EqualConstant: "Equal",
    ops.LessConstant: "Less",
    ops.LessEqualConstant: "LessOrEqual",
    ops.GreaterConstant: "Greater",
    ops.GreaterEqualConstant: "GreaterOrEqual",
}
_LOGIC: dict[type[ops.Operator], str] = {ops.LogicalAnd: "And", ops.LogicalOr: "Or", ops.LogicalXor: "Xor"}


def _true(w: GraphExporter, x: str) -> str:
    """Neither 0 nor NaN."""
    return w("Not", w("Or", w("Equal", x, w.number(0)), w("IsNaN", x)))


def _finite_or_zero(w: GraphExporter, x: str) -> str:
    return w("Where", w("Or", w("IsNaN", x), w("IsInf", x)), w.number(0), x)


def _sigmoid(w: GraphExporter, x: str) -> str:
    eps = float(np.finfo(np.float32).eps)
    return w("Clip", w("Sigmoid", x), w.number(eps), w.number(1 - eps))


def _square(w: GraphExporter, x: str) -> str:
    return w("Mul", x, x)


def _binary_cross_entropy(w: GraphExporter, prediction: str, label: str) -> str:
    one, zero = w.number(1), w.number(0)
    true = w("Mul", label, w("Log", w("Where", w("Equal", label, zero), one, prediction)))
    moved = w("Where", w("Equal", label, one), zero, prediction)
    false = w("Mul", w("Sub", one, label), w("Log", w("Sub", one, moved)))
    return w("Neg", w("Add", true, false))


def _sigmoid_binary_cross_entropy(w: GraphExporter, x: str, label: str) -> str:
    return w("Sub", w("Softplus", x), w("Mul", x, w("Clip", label, w.number(0), w.number(1))))


def _boolean(prediction_kind: str, label_kind: str) -> Function:
    def write(w: GraphExporter, prediction: str, label: str) -> str:
        half = w.number(0.5)
        return w.numbers(w("And", w(prediction_kind, prediction, half), w(label_kind, label, half)))

    return write


def _boolean_accuracy(w: GraphExporter, prediction: str, label: str) -> str:
    half = w.number(0.5)
    return w.numbers(w("Equal", w("GreaterOrEqual", prediction, half), w("GreaterOrEqual", label, half)))


_COMPOSED: dict[type[ops.Operator], Function] = {
    ops.LogicalNot: lambda w, x: w.numbers(w("Not", _true(w, x))),
    ops.SafeReciprocal: lambda w, x: _finite_or_zero(w, w("Reciprocal", x)),
    ops.Square: _square,
    ops.Rsqrt: lambda w, x: w("Reciprocal", w("Sqrt", x)),
    ops.Expm1: lambda w, x: w("Sub", w("Exp", x), w.number(1)),
    ops.Log1p: lambda w, x: w("Log", w("Add", x, w.number(1))),
    ops.Gelu: lambda w, x: w("Gelu", x, approximate="tanh"),
    ops.LogSigmoid: lambda w, x: w("Neg", w("Softplus", w("Neg", x))),
    ops.Sigmoid: _sigmoid,
    ops.Mod: lambda w, x1, x2: w("Mod", x1, x2, fmod=1),
    ops.SafeDivide: lambda w, x1, x2: _finite_or_zero(w, w("Div", x1, x2)),
    ops.SquaredDifference: lambda w, x1, x2: _square(w, w("Sub", x1, x2)),
    ops.NotEqual: lambda w, x1, x2: w.numbers(w("Not", w("Equal", x1, x2))),
    ops.BinaryCrossEntropy: _binary_cross_entropy,
    ops.SigmoidBinaryCrossEntropy: _sigmoid_binary_cross_entropy,
    ops.BooleanAccuracy: _boolean_accuracy,
    ops.BooleanFalseNegative: _boolean("Less", "GreaterOrEqual"),
    ops.BooleanFalsePositive: _boolean("GreaterOrEqual", "Less"),
}


def _clamp(w: GraphExporter, op: Any, x: str) -> str:
    return w("Clip", x, w.number(op.min), w.number(op.max))


def _select(w: GraphExporter, op: Any, predicate: str, *branches: str) -> str:
    given = iter(branches)
    near = w("Less", w("Abs", w("Sub", predicate, w.number(op.value))), w.number(op.epsilon or 1e-5))
    true = w.number(op.value_if_true) if op.constant_if_true else next(given)
    false = w.number(op.value_if_false) if op.constant_if_false else next(given)
    return w("Where", near, true, false)


_WITH_FIELDS: dict[type[ops.Operator], Function] = {
    ops.Clamp: _clamp,
    ops.Select: _select,
    ops.ConstantSubtract: lambda w, op, x: w("Sub", w.number(op.constant), x),
    ops.NotEqualConstant: lambda w, op, x: w.numbers(w("Not", w("Equal", x, w.number(op.constant)))),
}


def missing(planned: PlannedLayer) -> list[str]:
    """The operators of a layer that ONNX has not and that nothing here composes."""
    known = (_NAMED, _COMPARED, _WITH_CONSTANT, _COMPARED_WITH_CONSTANT, _LOGIC, _COMPOSED, _WITH_FIELDS)
    listed = planned.layer.ops if isinstance(planned.layer, OperatorLayer) else ()
    return [
        type(op).__name__
        for op in listed
        if type(op) is not ops.LogSoftmax and not any(type(op) in table for table in known)
    ]


def _written(w: GraphExporter, op: ops.Operator, shape: tuple[int, ...], *xs: str) -> str:
    kind = type(op)
    if kind is ops.LogSoftmax:
        return over_sample(w, "LogSoftmax", shape, *xs)
    if kind in _NAMED:
        return w(_NAMED[kind], *xs)
    if kind in _COMPARED:
        return w.numbers(w(_COMPARED[kind], *xs))
    if kind in _LOGIC:
        return w.numbers(w(_LOGIC[kind], *(_true(w, x) for x in xs)))
    if kind in _COMPOSED:
        return _COMPOSED[kind](w, *xs)
    if kind in _WITH_FIELDS:
        return _WITH_FIELDS[kind](w, op, *xs)
    constant = w.number(cast("Any", op).constant)
    if kind in _WITH_CONSTANT:
        return w(_WITH_CONSTANT[kind], *xs, constant)
    return w.numbers(w(_COMPARED_WITH_CONSTANT[kind], *xs, constant))


@exports(OperatorLayer)
def operator_layer(w: GraphExporter, planned: PlannedLayer, *xs: str) -> str:
    """One operator after the other."""
    for op in cast("OperatorLayer", planned.layer).ops:
        xs = (_written(w, op, planned.output_shape, *xs),)
    return xs[0]


# ---- layers that compute integers, written out: a file that is written holds floats, so each node casts there and
# back

_TYPES = {word: number for table in (INTEGERS, HALVES) for number, word in table.items()}
_OPERATORS = {"divide": ("Div", {}), "modulo": ("Mod", {}), "remainder": ("Mod", {"fmod": 1}), "power": ("Pow", {})}
_REDUCTIONS = {
    "magnitudes": "ReduceL1",
    "mean": "ReduceMean",
    "norm": "ReduceL2",
    "product": "ReduceProd",
    "squares": "ReduceSumSquare",
    "sum": "ReduceSum",
}


def _integers(w: GraphExporter, x: str) -> str:
    return w("Cast", x, to=onnx.TensorProto.INT64)


@exports(ToFormat)
def to_format(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A Cast, and one back."""
    word = cast("ToFormat", planned.layer).format
    return x if word == "float" else w.numbers(w("Cast", x, to=_TYPES[word]))


@exports(IntegerConstant)
def integer_constant(w: GraphExporter, planned: PlannedLayer) -> str:
    """The integers, for every sample."""
    layer = cast("IntegerConstant", planned.layer)
    if max(map(abs, layer.values)) > LARGEST_EXACT:
        raise Unsupported(f"layer '{planned.name}' holds integers beyond {LARGEST_EXACT:,}, which are no float32")
    values = np.array(layer.values, np.float32)
    whole = values.reshape(()) if len(values) == 1 else values.reshape(layer.dims)
    return w.per_sample(w.array(whole), planned.output_shape)


@exports(IntegerOperator)
def integer_operator(w: GraphExporter, planned: PlannedLayer, a: str, b: str) -> str:
    """Div, Mod or Pow of INT64."""
    kind, own = _OPERATORS[cast("IntegerOperator", planned.layer).operation]
    return w.numbers(w(kind, _integers(w, a), _integers(w, b), **own))


@exports(IntegerReduction)
def integer_reduction(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A reduction of INT64."""
    layer = cast("IntegerReduction", planned.layer)
    kind, axes = _REDUCTIONS[layer.operation], [axis + 1 for axis in layer.axes]
    y = w.numbers(w(kind, _integers(w, x), w.ints(*axes), keepdims=0))
    return y if len(axes) < len(planned.input_shapes[0]) else w.reshaped(y, 1)


@exports(CheckedIndex)
def checked_index(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Indices below 0 counted from the end; what reads them decides about those that are outside."""
    size = w.number(cast("CheckedIndex", planned.layer).size)
    return w("Where", w("Less", x, w.number(0)), w("Add", x, size), x)
