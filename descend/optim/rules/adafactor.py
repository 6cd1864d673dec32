"""Adafactor: Adam's scaling with a second moment kept as one row and one column of numbers.

    βₜ = 1 − t^c                                             c = beta2_decay, below 0
    ρₜ = min(lr, 1/√t)           αₜ = max(ε₂, rms(p)) ρₜ
    matrices    rₜ = βₜ r + (1 − βₜ) mean over a row of g²       kₜ = βₜ k + (1 − βₜ) mean over a column of g²
                Vₜ = rₜ kₜ / mean(rₜ)
    else        Vₜ = βₜ V + (1 − βₜ) g²
    u = g / max(√Vₜ, ε₁)
    pₜ = (1 − lr λ) pₜ₋₁ − αₜ u / max(1, rms(u)/d)

Shapes: g and u are shaped like p (..., n, m); r is (..., n, 1), k is (..., 1, m). rms(x) = ‖x‖/√size.
Units:  u is a pure number; rms(p) ρ makes the step relative to the weights.
Source: Shazeer and Stern 2018, Algorithms 4 and 5, https://arxiv.org/abs/1804.04235

| where | deviation |
|---|---|
| torch `Adafactor` | none: this is its rule, defaults included |
| paper | ε₁ is added to g² (1e-30), here it limits √V from below; ρₜ = min(0.01, 1/√t), here lr is the 0.01; no decay |
| timm `Adafactor` | fairseq's; matrices with a side below 16 are not factored; λ is multiplied by αₜ |
| optax, fairseq | ε₁ is added to g²; options for a first moment, not supported |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.arguments import check_number, require
from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_nonnegative, check_positive

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Adafactor", "AdafactorState"]


class AdafactorState(NamedTuple):
    """The state of Adafactor for a tensor: a row and a column of a matrix, or V of anything smaller."""

    row: Tensor | None  # r
    column: Tensor | None  # k
    V: Tensor | None


@dataclass(frozen=True)
class Adafactor(Rule):
    """Adafactor without a first moment.

    Args:
        beta2_decay: c, at most 0.
        eps1: ε₁; None takes the machine precision of the weights.
        eps2: ε₂, the least rms(p) that counts.
        d: Largest rms of the direction.

    Raises:
        RuleError: a number is out of range.
    """

    takes_stacks: ClassVar[bool] = True
    default_lr: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    beta2_decay: float = -0.8
    eps1: float | None = None
    eps2: float = 1e-3
    d: float = 1.0

    def __post_init__(self) -> None:
        check_nonnegative(self, "eps2")
        check_positive(self, "d")
        if self.eps1 is not None:
            check_nonnegative(self, "eps1")
        require(check_number("beta2_decay", self.beta2_decay, at_most=0), where="Adafactor", error=RuleError)

    def init(self, p: Tensor) -> AdafactorState:
        """Zeros."""
        if p.dim() < 2:
            return AdafactorState(None, None, torch.zeros_like(p))
        return AdafactorState(p.new_zeros((*p.shape[:-1], 1)), p.new_zeros((*p.shape[:-2], 1, p.shape[-1])), None)

    def update(
        self,
        g: Tensor,
        p: Tensor,
        s: AdafactorState,
        t: Tensor,
        lr: Tensor,
        decay: Tensor,
        size: Tensor,
        norm: Callable[[Tensor], Tensor],
        row_mean: Callable[[Tensor], Tensor],
        column_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, AdafactorState]:
        """One step of the equations above."""
        eps1 = torch.finfo(p.dtype).eps if self.eps1 is None else self.eps1
        new, per_root = t**self.beta2_decay, size.clamp(min=1.0) ** -0.5
        if s.row is None or s.column is None:
            assert s.V is not None
            V = (1 - new) * s.V + new * (g * g)
            root, after = V.sqrt(), AdafactorState(None, None, V)
        else:
            row = (1 - new) * s.row + new * row_mean(g * g)
            column = (1 - new) * s.column + new * column_mean(g * g)
            # Roots while it is small: only the product has as many elements as the weights.
            root = (row / column_mean(row).clamp(min=eps1)).sqrt() * column.sqrt()
            after = AdafactorState(row, column, None)
        u = g / root.clamp(min=eps1)
        alpha = (norm(p) * per_root).clamp(min=self.eps2) * torch.minimum(lr, t**-0.5)
        step = alpha / (norm(u) * per_root / self.d).clamp(min=1.0)
        return (1 - lr * decay) * p - step * u, after
