"""Activations composed of operators, one layer each; they are functions, as in LBANN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from descend.graph import Multiply, OperatorLayer, Sigmoid, ops

if TYPE_CHECKING:
    from descend.graph import Layer

__all__ = ["Gelu", "Gelu_approx", "Silu"]


def _named(name: str | None, part: str) -> str | None:
    return f"{name}_{part}" if name else None


def Gelu(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x Φ(x) = x (1 + erf(x / √2)) / 2, exactly; the layer `descend.Gelu` is the approximation by tanh.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    chain = [ops.Scale(constant=math.sqrt(0.5)), ops.Erf(), ops.AddConstant(constant=1.0), ops.Scale(constant=0.5)]
    return Multiply(x, OperatorLayer(x, ops=chain, name=_named(name, "share")), name=name)


def Gelu_approx(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, which is the operator Gelu."""
    return OperatorLayer(x, ops=[ops.Gelu()], name=name)


def Silu(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x σ(x). Source: Elfwing, Uchibe and Doya 2017, https://arxiv.org/abs/1702.03118"""
    return Multiply(x, Sigmoid(x, name=_named(name, "share")), name=name)
