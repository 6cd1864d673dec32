"""Signum and SignSGD: move every weight by the learning rate, in the direction of the (running) gradient's sign.

    SignSGD   dₜ = sign(gₜ)                          then the engine sets p ← p − lr dₜ
    Signum    mₜ = μ mₜ₋₁ + (1 − μ) gₜ               dₜ = sign(mₜ) + λₗ pₜ₋₁

Shapes: g, m and d are shaped like p; sign(0) = 0.
Units:  d is a pure number, so lr is what every weight moves.
Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434 (decay: section "signum with weight decay" of its code)

| where | deviation, and the setting that gives it |
|---|---|
| paper | none |
| MXNet `Signum` | `wd` enters the gradient (`decay="coupled"`), λₗ is its `wd_lh` |
| ... with momentum 0 | its `wd` is decoupled: `SignSGD`, `decay="decoupled"` |
| optax `sign_sgd` | none: `SignSGD` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SignSGD", "Signum", "SignumState"]


class SignumState(NamedTuple):
    """The state of Signum for a tensor."""

    m: Tensor  # running mean of g, shaped like p


@dataclass(frozen=True)
class SignSGD(Rule):
    """Sign descent without memory. Scaling or clipping the gradient changes nothing."""

    default_lr: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        """The sign of the gradient."""
        return g.sign(), None


@dataclass(frozen=True)
class Signum(Rule):
    """Sign descent on a running mean of the gradient.

    Args:
        momentum: μ in [0, 1).
        wd_lh: λₗ, decay outside the sign, times the learning rate.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 0.01

    momentum: float = 0.9
    wd_lh: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_nonnegative(self, "wd_lh")

    def init(self, p: Tensor) -> SignumState:
        """Zeros."""
        return SignumState(m=torch.zeros_like(p))

    def direction(self, g: Tensor, p: Tensor, s: SignumState) -> tuple[Tensor, SignumState]:
        """One step of the equations above."""
        m = self.momentum * s.m + (1 - self.momentum) * g
        d = m.sign()
        return d + self.wd_lh * p if self.wd_lh else d, SignumState(m)
