"""RMSProp: divide the gradient by a running root mean square of it.

    nₜ = ρ nₜ₋₁ + (1 − ρ) gₜ²        aₜ = ρ aₜ₋₁ + (1 − ρ) gₜ   (centered only)
    xₜ = gₜ / (√nₜ + ε)              centered: gₜ / (√(nₜ − aₜ²) + ε)
    bₜ = μ bₜ₋₁ + xₜ                 pₜ = pₜ₋₁ − lr bₜ            rate inside: bₜ = μ bₜ₋₁ + lr xₜ, pₜ = pₜ₋₁ − bₜ

Shapes: all are shaped like p.
Units:  x is a pure number of size about 1, so lr is in units of p per update.
Source: Tieleman and Hinton 2012 (lecture 6e); centered with momentum: Graves 2013, eqs. 38-45, https://arxiv.org/abs/1308.0850

| where | deviation, and the setting that gives it |
|---|---|
| Graves | ε inside the root, rate inside: `centered=True, momentum=0.9, eps_inside=True, rate_inside=True` |
| MXNet 2.0 plain | none (its momentum is not used) |
| MXNet 1.9 plain | ε inside |
| MXNet centered, both | as Graves, momentum 0.9 by default |
| torch `RMSprop` | ρ = 0.99; momentum with or without centering |
| timm `RMSpropTF` | ε and rate inside; n begins at 1, which is not supported |
| optax `rmsprop` | ε inside by default; rate inside when momentum is given |
| LBANN `RMSprop` | none |

Rounding can make n − a² a little negative; it is taken as 0 then, where torch writes NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, check_positive, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RMSProp", "RMSPropState"]


class RMSPropState(NamedTuple):
    """The state of RMSProp for a tensor; what the settings do not need is None."""

    n: Tensor  # running mean of g²
    a: Tensor | None  # running mean of g, when centered
    b: Tensor | None  # momentum buffer


@dataclass(frozen=True)
class RMSProp(Rule):
    """RMSProp: plain, centered, with momentum.

    Args:
        rho: ρ in [0, 1).
        eps: ε, at least 0.
        eps_inside: Add ε under the root.
        centered: Divide by the running standard deviation instead.
        momentum: μ in [0, 1).
        rate_inside: Put the learning rate inside the momentum buffer.
        clip_weights: Limit every weight to [−clip_weights, clip_weights] after the update.

    Raises:
        RuleError: a number is out of range, or rate_inside is set without momentum.
    """

    rho: float = 0.9
    eps: float = 1e-8
    eps_inside: bool = False
    centered: bool = False
    momentum: float = 0.0
    rate_inside: bool = False
    clip_weights: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self, "rho", "momentum")
        check_nonnegative(self, "eps")
        if self.clip_weights is not None:
            check_positive(self, "clip_weights")
        if self.rate_inside and not self.momentum:
            raise RuleError("RMSProp: rate_inside is about the momentum buffer, and momentum is 0: give momentum")

    def init(self, p: Tensor) -> RMSPropState:
        """Zeros for all that the settings need."""
        return RMSPropState(
            n=torch.zeros_like(p),
            a=torch.zeros_like(p) if self.centered else None,
            b=torch.zeros_like(p) if self.momentum else None,
        )

    def update(self, g: Tensor, p: Tensor, s: RMSPropState, lr: Tensor) -> tuple[Tensor, RMSPropState]:
        """One step of the equations above."""
        n = self.rho * s.n + (1 - self.rho) * g * g
        a, spread = None, n
        if s.a is not None:
            a = self.rho * s.a + (1 - self.rho) * g
            spread = (n - a * a).clamp(min=0)
        root = (spread + self.eps).sqrt() if self.eps_inside else spread.sqrt() + self.eps
        x = quotient(g, root, self.eps)
        u = lr * x if self.rate_inside else x
        b = None if s.b is None else self.momentum * s.b + u
        d = u if b is None else b
        p = p - (d if self.rate_inside else lr * d)
        if self.clip_weights is not None:
            p = p.clamp(-self.clip_weights, self.clip_weights)
        return p, RMSPropState(n, a, b)
