"""Adam: follow a running mean of the gradient, scaled by its running size.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ            vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    m̂ = mₜ / (1 − β₁ᵗ)                    v̂ = vₜ / (1 − β₂ᵗ)
    dₜ = m̂ / (√v̂ + ε)                     then the engine sets p ← p − lr dₜ

Shapes: g, m, v and d are shaped like p; t, the number of this update, is a float64 scalar from 1 up.
Units:  d is a pure number of size about 1, so lr is in units of p per update.
Source: Kingma and Ba 2015, Algorithm 1, https://arxiv.org/abs/1412.6980
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Adam", "AdamState"]


class AdamState(NamedTuple):
    """What Adam remembers of a tensor; both entries are shaped like it."""

    m: Tensor  # running mean of g
    v: Tensor  # running mean of g²


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, with ε outside the square root as in the paper.

    Raises:
        RuleError: beta1 or beta2 is outside [0, 1), or eps is negative.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")

    def init(self, p: Tensor) -> AdamState:
        """Zero moments."""
        return AdamState(m=torch.zeros_like(p), v=torch.zeros_like(p))

    def direction(self, g: Tensor, p: Tensor, s: AdamState, t: Tensor) -> tuple[Tensor, AdamState]:
        """One step of the equations above."""
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        m_hat = m / (1 - self.beta1**t)
        v_hat = v / (1 - self.beta2**t)
        return m_hat / (v_hat.sqrt() + self.eps), AdamState(m, v)
