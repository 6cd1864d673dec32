"""SGD and NAG: follow the gradient, or a running sum of gradients.

    without momentum        pₜ = pₜ₋₁ − lr gₜ
    momentum (heavy ball)   bₜ = μ bₜ₋₁ + (1 − τ) gₜ        pₜ = pₜ₋₁ − lr bₜ              b₁ = g₁
    Nesterov                bₜ as above                     pₜ = pₜ₋₁ − lr (gₜ + μ bₜ)
    rate inside             the same with lr gₜ for gₜ, and no lr before bₜ

Shapes: g, b and p are shaped alike.
Units:  lr is in units of p²: a gradient is loss per p. Rate outside: b is in units of g; inside: in units of p.
Source: Polyak 1964; Sutskever et al. 2013, https://proceedings.mlr.press/v28/sutskever13.html

Both places of the rate give one path while the rate is constant. After a change, a rate outside acts on the whole
buffer at once, a rate inside only on the gradients to come, which is a delay of about 1/(1 − μ) updates.

| where | rate | deviation |
|---|---|---|
| Sutskever et al. | inside | none: `SGD(momentum, rate_inside=True)` and `NAG` |
| torch `SGD` | outside | none: `SGD` |
| MXNet 2.0 `SGD`, `NAG` | inside | none; NAG's default momentum is 0.9 as here |
| MXNet 1.9 `NAG` | inside | keeps λ times the weight just written in the buffer, instead of the old one; not copied |
| optax `sgd` | outside | none |
| LBANN `SGD` | outside | none |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_fraction

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAG", "SGD", "SGDState"]


class SGDState(NamedTuple):
    """The state of momentum for a tensor."""

    b: Tensor  # running sum of g, or of lr g; shaped like p


@dataclass(frozen=True)
class SGD(Rule):
    """Stochastic gradient descent, with momentum when it is not 0.

    Args:
        momentum: μ, the part of the buffer that is kept, in [0, 1).
        dampening: τ, the part of a gradient that stays out of the buffer; the first gradient enters whole, as in torch.
            Without momentum it does nothing.
        nesterov: Step from the gradient plus μ times the new buffer.
        rate_inside: Put the learning rate inside the buffer, see above.

    Raises:
        RuleError: momentum or dampening is outside [0, 1), or nesterov is asked for without momentum.
    """

    rowwise: ClassVar[bool] = True
    default_lr: ClassVar[float] = 0.1

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    rate_inside: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "momentum", "dampening")
        if self.nesterov and not self.momentum:
            raise RuleError("SGD: nesterov acts on momentum, which is 0: give momentum, for example 0.9")

    def init(self, p: Tensor) -> SGDState | None:
        """A buffer of zeros; nothing without momentum."""
        return SGDState(b=torch.zeros_like(p)) if self.momentum else None

    def update(self, g: Tensor, p: Tensor, s: SGDState | None, t: Tensor, lr: Tensor) -> tuple[Tensor, SGDState | None]:
        """One step of the equations above."""
        if s is None:
            return p - lr * g, None
        u = lr * g if self.rate_inside else g
        b = self.momentum * s.b + ((1 - self.dampening) * u if self.dampening else u)
        if self.dampening:
            b = torch.where(t == 1, u, b)
        d = u + self.momentum * b if self.nesterov else b
        return p - (d if self.rate_inside else lr * d), SGDState(b)


@dataclass(frozen=True)
class NAG(Rule):
    """Nesterov's accelerated gradient as Sutskever et al. wrote it: `SGD(nesterov=True)` with the rate inside.

    Args:
        momentum: μ in [0, 1); 0 is plain SGD.
        rate_inside: False puts the rate outside the buffer, as torch does.

    Raises:
        RuleError: momentum is outside [0, 1).
    """

    default_lr: ClassVar[float] = 0.1

    momentum: float = 0.9
    rate_inside: bool = True

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")

    def init(self, p: Tensor) -> SGDState:
        """A buffer of zeros."""
        return SGDState(b=torch.zeros_like(p))

    def update(self, g: Tensor, p: Tensor, s: SGDState, lr: Tensor) -> tuple[Tensor, SGDState]:
        """One step of the equations above."""
        u = lr * g if self.rate_inside else g
        b = self.momentum * s.b + u
        d = u + self.momentum * b
        return p - (d if self.rate_inside else lr * d), SGDState(b)
