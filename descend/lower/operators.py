"""Operators: one function of tensors for each, shared by OperatorLayer and the layers of one operator.

Where torch's gradient is not the format's, the rule stands beside the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

from descend.graph import OperatorLayer, ops
from descend.lower.formats import in_formats, with_gradient
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward

    Function = Callable[..., Tensor]

__all__ = ["function_of"]


def _is_true(x: Tensor) -> Tensor:
    return (x != 0) & ~x.isnan()


def _indicator(condition: Callable[..., Tensor]) -> Function:
    """1 where the condition holds and 0 elsewhere, in the format of the input and without a gradient."""
    return lambda *xs: condition(*xs).to(xs[0].dtype)


def _finite(x: Tensor) -> Tensor:
    """x, and 0 where it is not finite."""
    return x.where(x.isfinite(), 0.0)


def _over(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, and 0 where top is 0, whatever bottom is."""
    return (top / bottom).where(top != 0, 0.0)


def _where_finite(gradient: Tensor, y: Tensor) -> Tensor:
    return _finite(gradient).where(y.isfinite(), 0.0)


def _safe_divide_gradient(dy: Tensor, _: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    quotient = x1 / x2
    return _where_finite(dy / x2, quotient), _where_finite(-dy * quotient / x2, quotient)


def _mod_gradient(dy: Tensor, _: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    return dy, -dy * torch.floor(x1 / x2)


def _sigmoid(x: Tensor) -> Tensor:
    eps = torch.finfo(x.dtype).eps
    return torch.sigmoid(x).clamp(eps, 1.0 - eps)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _binary_cross_entropy(prediction: Tensor, label: Tensor) -> Tensor:
    # The end beside a weight of 0 is moved away before the logarithm: 0 · log 0 and its gradient would be NaN.
    true = label * prediction.where((label != 0) | (prediction > 0), 1.0).log()
    false = (1.0 - label) * (1.0 - prediction.where((label != 1) | (prediction < 1), 0.0)).log()
    return -true - false


def _sigmoid_binary_cross_entropy(x: Tensor, label: Tensor) -> Tensor:
    # As x⁺ − x label, which is exactly 0 for a label on the side of x, and what is left: softplus(x) − x would lose it.
    return x.clamp_min(0.0) - x * label.clamp(0.0, 1.0) + torch.log1p((-x.abs()).exp())


def _sigmoid_binary_cross_entropy_gradient(dy: Tensor, _: Tensor, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    inside = (label >= 0) & (label <= 1)
    return dy * (torch.sigmoid(x) - label.clamp(0.0, 1.0)), (-dy * x).where(inside, 0.0)


_PLAIN: dict[type[ops.Operator], Function] = {
    ops.LogicalNot: _indicator(lambda x: ~_is_true(x)),
    ops.Abs: torch.abs,
    ops.Negative: torch.neg,
    ops.Sign: torch.sign,
    ops.Round: torch.round,
    ops.Ceil: torch.ceil,
    ops.Floor: torch.floor,
    ops.Reciprocal: with_gradient(torch.reciprocal, lambda dy, y, x: _over(-dy, x * x)),
    ops.SafeReciprocal: with_gradient(
        lambda x: _finite(torch.reciprocal(x)), lambda dy, y, x: _where_finite(-dy / (x * x), 1.0 / x)
    ),
    ops.Square: torch.square,
    ops.Sqrt: torch.sqrt,
    ops.Rsqrt: torch.rsqrt,
    ops.Exp: torch.exp,
    ops.Expm1: with_gradient(torch.expm1, lambda dy, y, x: dy * x.exp()),  # torch's y + 1 loses small ones
    ops.Log: torch.log,
    ops.Log1p: torch.log1p,
    ops.Cos: torch.cos,
    ops.Sin: torch.sin,
    ops.Tan: torch.tan,
    ops.Acos: torch.acos,
    ops.Asin: torch.asin,
    ops.Atan: torch.atan,
    ops.Cosh: torch.cosh,
    ops.Sinh: torch.sinh,
    ops.Tanh: torch.tanh,
    ops.Acosh: torch.acosh,
    ops.Asinh: torch.asinh,
    ops.Atanh: torch.atanh,
    ops.Erf: torch.erf,
    ops.ErfInv: torch.erfinv,
    ops.Gelu: lambda x: functional.gelu(x, approximate="tanh"),
    ops.LogSigmoid: functional.logsigmoid,
    ops.LogSoftmax: lambda x: functional.log_softmax(x.flatten(1), 1).view_as(x),
    ops.Selu: functional.selu,
    ops.Sigmoid: _sigmoid,
    ops.Softplus: _softplus,
    ops.Softsign: with_gradient(functional.softsign, lambda dy, y, x: dy / (1.0 + x.abs()).square()),  # as Expm1
    ops.Add: torch.add,
    ops.Subtract: torch.sub,
    ops.Multiply: torch.mul,
    ops.Divide: torch.div,
    ops.Mod: with_gradient(torch.fmod, _mod_gradient),
    ops.Pow: torch.pow,
    ops.SafeDivide: with_gradient(lambda x1, x2: _finite(x1 / x2), _safe_divide_gradient),
    ops.SquaredDifference: lambda x1, x2: (x1 - x2).square(),
    ops.Max: torch.maximum,  # of equal ones each gets half the gradient
    ops.Min: torch.minimum,
    ops.Equal: _indicator(torch.eq),
    ops.NotEqual: _indicator(torch.ne),
    ops.Less: _indicator(torch.lt),
    ops.LessEqual: _indicator(torch.le),
    ops.Greater: _indicator(torch.gt),
    ops.GreaterEqual: _indicator(torch.ge),
    ops.LogicalAnd: _indicator(lambda x1, x2: _is_true(x1) & _is_true(x2)),
    ops.LogicalOr: _indicator(lambda x1, x2: _is_true(x1) | _is_true(x2)),
    ops.LogicalXor: _indicator(lambda x1, x2: _is_true(x1) ^ _is_true(x2)),
    ops.BinaryCrossEntropy: _binary_cross_entropy,
    ops.SigmoidBinaryCrossEntropy: with_gradient(_sigmoid_binary_cross_entropy, _sigmoid_binary_cross_entropy_gradient),
    ops.BooleanAccuracy: _indicator(lambda prediction, label: (prediction >= 0.5) == (label >= 0.5)),
    ops.BooleanFalseNegative: _indicator(lambda prediction, label: (prediction < 0.5) & (label >= 0.5)),
    ops.BooleanFalsePositive: _indicator(lambda prediction, label: (prediction >= 0.5) & (label < 0.5)),
}

# The second input is the operator's constant.
_WITH_CONSTANT: dict[type[ops.Operator], Callable[[Tensor, float], Tensor]] = {
    ops.AddConstant: torch.add,
    ops.Scale: torch.mul,
    ops.SubtractConstant: torch.sub,
    ops.ConstantSubtract: lambda x, c: c - x,
    ops.MaxConstant: lambda x, c: torch.maximum(x, x.new_full((), c)),  # a clamp would give a tie the whole gradient
    ops.MinConstant: lambda x, c: torch.minimum(x, x.new_full((), c)),
    ops.EqualConstant: _indicator(torch.eq),
    ops.NotEqualConstant: _indicator(torch.ne),
    ops.LessConstant: _indicator(torch.lt),
    ops.LessEqualConstant: _indicator(torch.le),
    ops.GreaterConstant: _indicator(torch.gt),
    ops.GreaterEqualConstant: _indicator(torch.ge),
}


def function_of(op: ops.Operator) -> Function:
    """What an operator computes: a function of as many tensors of one shape as it has inputs."""
    kind = type(op)
    if isinstance(op, ops.Clamp):
        return _clamp(op)
    if isinstance(op, ops.Select):
        return _select(op)
    if kind in _WITH_CONSTANT:
        function, constant = _WITH_CONSTANT[kind], cast("Any", op).constant
        return lambda x: function(x, constant)
    return _PLAIN[kind]


def _clamp(op: ops.Clamp) -> Function:
    low, high = op.min, op.max
    return with_gradient(lambda x: x.clamp(low, high), lambda dy, y, x: dy.where((x > low) & (x < high), 0.0))


def _select(op: ops.Select) -> Function:
    width = op.epsilon or 1e-5

    def forward(predicate: Tensor, *branches: Tensor) -> Tensor:
        given = iter(branches)
        if not predicate.is_floating_point():  # truths and integers have neither the constants nor all differences
            predicate = predicate.to(torch.get_default_dtype())
        true = predicate.new_full((), op.value_if_true) if op.constant_if_true else next(given)
        false = predicate.new_full((), op.value_if_false) if op.constant_if_false else next(given)
        return torch.where((predicate - op.value).abs() < width, true, false)

    return forward


def _in_its_formats(op: ops.Operator) -> Function:
    function = function_of(op)
    if not (op.input_datatype or op.output_datatype):
        return function
    return in_formats(function, False, op.input_datatype or None, op.output_datatype or None)


@lowers(OperatorLayer)
def operator_layer(planned: PlannedLayer) -> Forward:
    """One operator after the other."""
    first, *others = [_in_its_formats(op) for op in cast("OperatorLayer", planned.layer).ops]

    def forward(*xs: Tensor) -> Tensor:
        y = first(*xs)
        for function in others:
            y = function(y)
        return y

    return forward
