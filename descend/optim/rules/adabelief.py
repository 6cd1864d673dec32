"""AdaBelief: Adam scaled by how far the gradient lies from its running mean.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ        sₜ = β₂ sₜ₋₁ + (1 − β₂)(gₜ − mₜ)² + ε
    m̂ = mₜ / (1 − β₁ᵗ)                ŝ = sₜ / (1 − β₂ᵗ)
    dₜ = m̂ / (√ŝ + ε)                 then the engine sets p ← p − lr dₜ

Shapes: g, m, s and d are shaped like p.
Units:  d is a pure number; ε is added every step, so s tends to at least ε/(1 − β₂).
Source: Zhuang et al. 2020, Algorithm 2, https://arxiv.org/abs/2010.07468

| where | deviation, and the setting that gives it |
|---|---|
| paper | none with ε = 1e-8; the authors' code uses 1e-16, as here |
| MXNet 2.0 `AdaBelief` | ε = 1e-6 beside the uncorrected root: `eps_at="uncorrected"`; `decay="clipped"` |
| authors' code, timm | rectify as RAdam and decouple the decay by default; not rectified here |
| optax `adabelief` | none when its eps and eps_root are equal; its default is 1e-16 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_choice, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdaBelief", "AdaBeliefState"]


class AdaBeliefState(NamedTuple):
    """The state of AdaBelief for a tensor; both entries are shaped like it."""

    m: Tensor  # running mean of g
    s: Tensor  # running mean of (g − m)², plus ε each step


@dataclass(frozen=True)
class AdaBelief(Rule):
    """AdaBelief.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        eps_at: "outside" √ŝ + ε, or "uncorrected" √s + ε.
        bias_correction: False takes m and s as they are.

    Raises:
        RuleError: a number is out of range, or eps_at is none of the two.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-16
    eps_at: str = "outside"
    bias_correction: bool = True

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")
        check_choice(self, "eps_at", ("outside", "uncorrected"))

    def init(self, p: Tensor) -> AdaBeliefState:
        """Zeros."""
        return AdaBeliefState(m=torch.zeros_like(p), s=torch.zeros_like(p))

    def direction(self, g: Tensor, s: AdaBeliefState, t: Tensor) -> tuple[Tensor, AdaBeliefState]:
        """One step of the equations above."""
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.s + (1 - self.beta2) * (g - m) ** 2 + self.eps
        c1 = 1 - self.beta1**t if self.bias_correction else torch.ones_like(t)
        c2 = 1 - self.beta2**t if self.bias_correction else torch.ones_like(t)
        if self.eps_at == "uncorrected":
            return c2.sqrt() / c1 * quotient(m, v.sqrt() + self.eps, self.eps), AdaBeliefState(m, v)
        return quotient(m / c1, (v / c2).sqrt() + self.eps, self.eps), AdaBeliefState(m, v)
