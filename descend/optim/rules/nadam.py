"""Nadam: Adam with Nesterov's look-ahead and a momentum that warms up.

    μₜ = β₁ (1 − ½ 0.96^(ψ t))            Πₜ = Πₜ₋₁ μₜ
    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ            vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    m̄ = (1 − μₜ) gₜ / (1 − Πₜ) + μₜ₊₁ mₜ / (1 − Πₜ μₜ₊₁)        v̂ = vₜ / (1 − β₂ᵗ)
    dₜ = m̄ / (√v̂ + ε)                     then the engine sets p ← p − lr dₜ

Shapes: g, m, v and d are shaped like p; Π is one number a tensor.
Units:  d is a pure number of size about 1.
Source: Dozat 2016, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ

| where | deviation, and the setting that gives it |
|---|---|
| paper | none (ψ = 0.004) |
| MXNet `Nadam` | one Π for the whole optimizer, multiplied once a tensor, so that their number matters (not copied) |
| torch `NAdam` | none; Π is kept in float32 there |
| timm `NAdam` | as torch's |
| optax `nadam` | constant μ: `schedule_decay` has no such value, not supported |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.machine import number
from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Nadam", "NadamState"]


class NadamState(NamedTuple):
    """The state of Nadam for a tensor."""

    m: Tensor  # running mean of g, shaped like p
    v: Tensor  # running mean of g², shaped like p
    product: Tensor  # Π, one float64 number


@dataclass(frozen=True)
class Nadam(Rule):
    """Nadam with a momentum product of its own for each tensor.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        schedule_decay: ψ, at least 0.

    Raises:
        RuleError: a number is out of range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    schedule_decay: float = 0.004

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps", "schedule_decay")

    def init(self, p: Tensor) -> NadamState:
        """Zero moments and a product of 1."""
        return NadamState(torch.zeros_like(p), torch.zeros_like(p), number(p, 1.0))

    def direction(self, g: Tensor, s: NadamState, t: Tensor) -> tuple[Tensor, NadamState]:
        """One step of the equations above."""
        mu = self._mu(t)
        mu_next = self._mu(t + 1)
        product = s.product * mu
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        m_bar = (1 - mu) / (1 - product) * g + mu_next / (1 - product * mu_next) * m
        root = (v / (1 - self.beta2**t)).sqrt() + self.eps
        return quotient(m_bar, root, self.eps), NadamState(m, v, product)

    def _mu(self, t: Tensor) -> Tensor:
        return self.beta1 * (1 - 0.5 * 0.96 ** (t * self.schedule_decay))
