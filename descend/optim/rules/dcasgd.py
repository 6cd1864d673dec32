"""DCASGD: SGD whose gradient, computed at an older weight, is carried to the present one by a cheap Hessian.

    Gₜ = gₜ + λ pₜ₋₁
    dₜ = Gₜ + κ Gₜ² (pₜ₋₁ − qₜ₋₁)          q is the weight that the gradient before was computed at
    without momentum  pₜ = pₜ₋₁ − lr dₜ    else bₜ = μ bₜ₋₁ + lr dₜ,  pₜ = pₜ₋₁ − bₜ
    qₜ = pₜ₋₁

Shapes: g, G, d, b, p and q are shaped alike.
Units:  κ has the units of p over loss gradient, twice; lr as SGD's.
Source: Zheng et al. 2017, eq. 10 with a constant λ, https://arxiv.org/abs/1609.08326

| where | deviation, and the setting that gives it |
|---|---|
| paper | decays nothing; its adaptive κ is not supported |
| MXNet 2.0 | none |
| MXNet 1.9 | λ p stands outside the square: `decay_in_square=False`; any momentum raises there |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DCASGD", "DCASGDState"]


class DCASGDState(NamedTuple):
    """The state of DCASGD for a tensor; the entries are shaped like it."""

    q: Tensor  # the weight that the gradient before was computed at
    b: Tensor | None  # momentum buffer


@dataclass(frozen=True)
class DCASGD(Rule):
    """Delay-compensated asynchronous SGD.

    Args:
        lamda: κ, the strength of the compensation, at least 0.
        momentum: μ in [0, 1).
        decay_in_square: Square the decay term too.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 0.1

    lamda: float = 0.04
    momentum: float = 0.0
    decay_in_square: bool = True

    def __post_init__(self) -> None:
        check_nonnegative(self, "lamda")
        check_fraction(self, "momentum")

    def init(self, p: Tensor) -> DCASGDState:
        """The weight itself is the one before."""
        return DCASGDState(q=p.detach().clone(), b=torch.zeros_like(p) if self.momentum else None)

    def update(self, g: Tensor, p: Tensor, s: DCASGDState, lr: Tensor, decay: Tensor) -> tuple[Tensor, DCASGDState]:
        """One step of the equations above."""
        decayed = g + decay * p
        G = decayed if self.decay_in_square else g
        d = lr * (decayed + self.lamda * G * G * (p - s.q))
        b = None if s.b is None else self.momentum * s.b + d
        return p - (d if b is None else b), DCASGDState(q=p.clone(), b=b)
