"""FTML: follow the moving leader, FTRL for deep nets.

    vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    dₜ = (1 − β₁ᵗ)/lr (√(vₜ / (1 − β₂ᵗ)) + ε)
    zₜ = β₁ zₜ₋₁ + (1 − β₁) gₜ − (dₜ − β₁ dₜ₋₁) pₜ₋₁
    pₜ = −zₜ / dₜ

Shapes: g, v, d, z and p are shaped alike.
Units:  lr is in units of p, as Adam's.
Source: Zheng and Kwok 2017, Algorithm 1, http://proceedings.mlr.press/v70/zheng17a.html

| where | deviation |
|---|---|
| paper | a constant rate; here the rate in force. A rate of 0 leaves weights and state as they are |
| paper, with ε = 0 | divides 0 by 0 where no gradient has come yet; here the weight stays |
| MXNet 2.0 `FTML` | none |
| MXNet 1.9 `FTML` | clips the decay with the gradient: `decay="clipped"` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FTML", "FTMLState"]


class FTMLState(NamedTuple):
    """The state of FTML for a tensor; all entries are shaped like it."""

    v: Tensor  # running mean of g²
    d: Tensor  # curvature of the leader's problem
    z: Tensor  # its linear term


@dataclass(frozen=True)
class FTML(Rule):
    """Follow the moving leader.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 2.5e-3

    beta1: float = 0.6
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")

    def init(self, p: Tensor) -> FTMLState:
        """Zeros."""
        return FTMLState(torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(p))

    def update(self, g: Tensor, p: Tensor, s: FTMLState, t: Tensor, lr: Tensor) -> tuple[Tensor, FTMLState]:
        """One step of the equations above."""
        moving = lr > 0
        rate = torch.where(moving, lr, torch.ones_like(lr))
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        d = (1 - self.beta1**t) / rate * ((v / (1 - self.beta2**t)).sqrt() + self.eps)
        z = self.beta1 * s.z + (1 - self.beta1) * g - (d - self.beta1 * s.d) * p
        new = torch.where(moving & (d > 0), -quotient(z, d), p)
        return new, FTMLState(*(torch.where(moving, a, b) for a, b in zip((v, d, z), s, strict=True)))
