"""HypergradientAdam: Adam whose learning rate follows its own gradient.

    aₜ = aₜ₋₁ + h ⟨gₜ, dₜ₋₁⟩                    the rate in force is lr + aₜ, with a₀ = 0
    gₜ ← gₜ + ε                                 after the product, before the moments
    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ                  vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    dₜ = √(1 − β₂ᵗ)/(1 − β₁ᵗ) mₜ / (√vₜ + ε)    pₜ = pₜ₋₁ − (lr + aₜ) dₜ

Shapes: g, m, v and d are shaped like p; a is one number a tensor; ⟨,⟩ sums over one tensor.
Units:  d is a pure number; a is in units of lr; h is in units of lr per unit of loss gradient.
Source: Baydin et al. 2018, Algorithm 3, https://arxiv.org/abs/1703.04782

| where | deviation |
|---|---|
| paper | adds no ε to the gradient, and corrects the root before ε is added |
| LBANN `HypergradientAdam` | none |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.machine import number
from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["HypergradientAdam", "HypergradientAdamState"]


class HypergradientAdamState(NamedTuple):
    """The state of HypergradientAdam for a tensor."""

    m: Tensor  # running mean of g, shaped like p
    v: Tensor  # running mean of g², shaped like p
    d: Tensor  # the direction of the last update, shaped like p
    a: Tensor  # what the rate has gained so far, one float64 number


@dataclass(frozen=True)
class HypergradientAdam(Rule):
    """Adam with a learning rate for each tensor that is itself learned.

    Args:
        hyper_learning_rate: h, at least 0; 0 is Adam.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.

    Raises:
        RuleError: a number is out of range.
    """

    hyper_learning_rate: float = 1e-7
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "hyper_learning_rate", "eps")

    def init(self, p: Tensor) -> HypergradientAdamState:
        """Zeros: the first update moves at the given rate."""
        zeros = torch.zeros_like
        return HypergradientAdamState(zeros(p), zeros(p), zeros(p), number(p))

    def update(
        self,
        g: Tensor,
        p: Tensor,
        s: HypergradientAdamState,
        t: Tensor,
        lr: Tensor,
        total: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, HypergradientAdamState]:
        """One step of the equations above."""
        a = s.a + self.hyper_learning_rate * total(g * s.d)
        g = g + self.eps
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        c = (1 - self.beta2**t).sqrt() / (1 - self.beta1**t)
        d = c * quotient(m, v.sqrt() + self.eps, self.eps)
        return p - (lr + a) * d, HypergradientAdamState(m, v, d, a)
