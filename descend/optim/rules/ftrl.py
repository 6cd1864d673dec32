"""FTRL-proximal: the weight that would have been best so far, with an L1 term that makes most weights exactly 0.

    nₜ = nₜ₋₁ + gₜ²
    zₜ = zₜ₋₁ + gₜ − (√nₜ − √nₜ₋₁)/lr pₜ₋₁
    pₜ = −sign(zₜ) max(|zₜ| − λ₁, 0) / ((β + √nₜ)/lr + λ₂)

Shapes: g, n, z and p are shaped alike. λ₂ is the weight decay.
Units:  lr is in units of p, as AdaGrad's; λ₁ is in units of g.
Source: McMahan et al. 2013, Algorithm 1, https://research.google/pubs/pub41159/

| where | deviation |
|---|---|
| paper | a constant rate; here the rate in force. A rate of 0 leaves weights and state as they are |
| MXNet `Ftrl` | none |
| TensorFlow | a power of n other than ½, and a shrinkage; not supported |

The weight is recomputed from z and n: where no gradient has come yet it becomes 0, and the first weights fade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FTRL", "FTRLState"]


class FTRLState(NamedTuple):
    """The state of FTRL for a tensor; both entries are shaped like it."""

    z: Tensor  # sum of gradients, less what the weights already carry
    n: Tensor  # sum of g²


@dataclass(frozen=True)
class FTRL(Rule):
    """Follow the regularised leader.

    Args:
        lamda1: λ₁, at least 0.
        beta: β, at least 0.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 0.1

    lamda1: float = 0.01
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_nonnegative(self, "lamda1", "beta")

    def init(self, p: Tensor) -> FTRLState:
        """Zeros."""
        return FTRLState(z=torch.zeros_like(p), n=torch.zeros_like(p))

    def update(self, g: Tensor, p: Tensor, s: FTRLState, lr: Tensor, decay: Tensor) -> tuple[Tensor, FTRLState]:
        """One step of the equations above."""
        moving = lr > 0
        rate = torch.where(moving, lr, torch.ones_like(lr))
        n = s.n + g * g
        z = s.z + g - (n.sqrt() - s.n.sqrt()) / rate * p
        new = quotient(
            -z.sign() * (z.abs() - self.lamda1).clamp(min=0), (self.beta + n.sqrt()) / rate + decay, self.beta
        )
        return torch.where(moving, new, p), FTRLState(torch.where(moving, z, s.z), torch.where(moving, n, s.n))
