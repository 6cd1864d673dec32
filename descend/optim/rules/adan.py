"""Adan: Adam on Nesterov's gradient, which is estimated from the difference of two gradients.

    Δₜ = gₜ − gₜ₋₁, 0 at the first update
    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ        nₜ = β₂ nₜ₋₁ + (1 − β₂) Δₜ        vₜ = β₃ vₜ₋₁ + (1 − β₃)(gₜ + β₂ Δₜ)²
    u = (mₜ/(1 − β₁ᵗ) + β₂ nₜ/(1 − β₂ᵗ)) / (√(vₜ/(1 − β₃ᵗ)) + ε)
    pₜ = (pₜ₋₁ − lr u) / (1 + lr λ)          with `proximal`, else  pₜ = (1 − lr λ) pₜ₋₁ − lr u

Shapes: g, Δ, m, n, v and u are shaped like p.
Units:  u is a pure number of size about 1; λ is per update and per unit of lr.
Source: Xie et al. 2022, Algorithm 1, https://arxiv.org/abs/2208.06677

| where | deviation, and the setting that gives it |
|---|---|
| paper | its β are 1 − ours: (0.02, 0.08, 0.01) there are (0.98, 0.92, 0.99) here |
| authors' code `Adan` | none; `no_prox=True` is `proximal=False`; the loop clips the global norm |
| timm `Adan`, optax `adan` | `proximal=False` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Adan", "AdanState"]


class AdanState(NamedTuple):
    """The state of Adan for a tensor; all entries are shaped like it."""

    m: Tensor  # running mean of g
    n: Tensor  # running mean of the difference of gradients
    v: Tensor  # running mean of (g + β₂ Δ)²
    g: Tensor  # the last gradient


@dataclass(frozen=True)
class Adan(Rule):
    """Adan.

    Args:
        beta1: β₁ in [0, 1), of the gradient.
        beta2: β₂ in [0, 1), of the difference.
        beta3: β₃ in [0, 1), of the square.
        eps: ε, at least 0.
        proximal: Whether the decay divides after the update, as in the paper, or multiplies before it.

    Raises:
        RuleError: a number is out of range.
    """

    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.98
    beta2: float = 0.92
    beta3: float = 0.99
    eps: float = 1e-8
    proximal: bool = True

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2", "beta3")
        check_nonnegative(self, "eps")

    def init(self, p: Tensor) -> AdanState:
        """Zeros."""
        return AdanState(*(torch.zeros_like(p) for _ in range(4)))

    def update(
        self, g: Tensor, p: Tensor, s: AdanState, t: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, AdanState]:
        """One step of the equations above."""
        change = torch.where(t > 1, g - s.g, torch.zeros_like(g))
        m = self.beta1 * s.m + (1 - self.beta1) * g
        n = self.beta2 * s.n + (1 - self.beta2) * change
        v = self.beta3 * s.v + (1 - self.beta3) * (g + self.beta2 * change) ** 2
        step = m / (1 - self.beta1**t) + self.beta2 * (n / (1 - self.beta2**t))
        u = quotient(step, (v / (1 - self.beta3**t)).sqrt() + self.eps, self.eps)
        new = (p - lr * u) / (1 + lr * decay) if self.proximal else (1 - lr * decay) * p - lr * u
        return new, AdanState(m, n, v, g)
