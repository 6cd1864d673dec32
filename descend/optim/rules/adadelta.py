"""AdaDelta: scale the gradient by the ratio of two running sizes, of past steps and of gradients.

    Eₜ = ρ Eₜ₋₁ + (1 − ρ) gₜ²
    dₜ = √(Dₜ₋₁ + ε) / √(Eₜ + ε) gₜ            then the engine sets p ← p − lr dₜ
    Dₜ = ρ Dₜ₋₁ + (1 − ρ) dₜ²

Shapes: g, E, D and d are shaped like p.
Units:  d is in units of p already, so lr is a pure number, 1 in the paper.
Source: Zeiler 2012, Algorithm 1, https://arxiv.org/abs/1212.5701

| where | deviation, and the setting that gives it |
|---|---|
| paper | none with lr = 1; ρ = 0.95 there |
| MXNet 2.0, torch, timm, optax | none |
| MXNet 1.9 | no rate at all and w ← w − d − λ w: `lr=1` and `decay="decoupled"` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_positive

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdaDelta", "AdaDeltaState"]


class AdaDeltaState(NamedTuple):
    """The state of AdaDelta for a tensor; both entries are shaped like it."""

    E: Tensor  # running mean of g²
    D: Tensor  # running mean of d²


@dataclass(frozen=True)
class AdaDelta(Rule):
    """AdaDelta.

    Args:
        rho: ρ in [0, 1).
        eps: ε, above 0: it is what makes the first step possible.

    Raises:
        RuleError: rho or eps is out of range.
    """

    default_lr: ClassVar[float] = 1.0

    rho: float = 0.9
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_fraction(self, "rho")
        check_positive(self, "eps")

    def init(self, p: Tensor) -> AdaDeltaState:
        """Zeros."""
        return AdaDeltaState(E=torch.zeros_like(p), D=torch.zeros_like(p))

    def direction(self, g: Tensor, s: AdaDeltaState) -> tuple[Tensor, AdaDeltaState]:
        """One step of the equations above."""
        E = self.rho * s.E + (1 - self.rho) * g * g
        d = (s.D + self.eps).sqrt() / (E + self.eps).sqrt() * g
        D = self.rho * s.D + (1 - self.rho) * d * d
        return d, AdaDeltaState(E, D)
