"""Adamax: Adam with the largest recent gradient in the place of the root mean square.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ        uₜ = max(β₂ uₜ₋₁, |gₜ|)
    dₜ = mₜ / (1 − β₁ᵗ) / (uₜ + ε)    then the engine sets p ← p − lr dₜ

Shapes: g, m, u and d are shaped like p.
Units:  d is a pure number of size at most about 1.
Source: Kingma and Ba 2015, Algorithm 2, https://arxiv.org/abs/1412.6980

| where | deviation, and the setting that gives it |
|---|---|
| paper, MXNet 1.9 | ε = 0; they divide 0 by 0 where all gradients were 0, here such an entry does not move |
| MXNet 2.0 | none, ε = 1e-8 |
| torch and timm `Adamax`, optax `adamax` | uₜ = max(β₂ uₜ₋₁, |gₜ| + ε) and no ε later: `eps_inside=True` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Adamax", "AdamaxState"]


class AdamaxState(NamedTuple):
    """The state of Adamax for a tensor; both entries are shaped like it."""

    m: Tensor  # running mean of g
    u: Tensor  # largest recent |g|


@dataclass(frozen=True)
class Adamax(Rule):
    """Adamax.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        eps_inside: Add ε to |g| inside the maximum, as torch does, and not to u.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 2e-3

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_inside: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")

    def init(self, p: Tensor) -> AdamaxState:
        """Zeros."""
        return AdamaxState(m=torch.zeros_like(p), u=torch.zeros_like(p))

    def direction(self, g: Tensor, s: AdamaxState, t: Tensor) -> tuple[Tensor, AdamaxState]:
        """One step of the equations above."""
        m = self.beta1 * s.m + (1 - self.beta1) * g
        size = g.abs() + self.eps if self.eps_inside else g.abs()
        u = torch.maximum(self.beta2 * s.u, size)
        root = u if self.eps_inside else u + self.eps
        return quotient(m / (1 - self.beta1**t), root, self.eps), AdamaxState(m, u)
