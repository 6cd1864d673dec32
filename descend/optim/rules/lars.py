"""LARS: SGD with momentum whose rate is scaled, tensor by tensor, to the size of the weights.

    r  = c ‖p‖ / (‖g‖ + λ ‖p‖ + ε)            r = 1 where ‖p‖ or ‖g‖ is 0
    bₜ = μ bₜ₋₁ + lr r (gₜ + λ p)              pₜ = pₜ₋₁ − bₜ
    rate outside: bₜ = μ bₜ₋₁ + (1 − τ) r (gₜ + λ p)           pₜ = pₜ₋₁ − lr bₜ

Shapes: g, b and p are shaped alike; r is one number a tensor.
Units:  r has the units of p over those of g, so lr is a pure number: an update moves about c lr of a tensor's length.
Source: You, Gitman and Ginsburg 2017, Algorithm 1, https://arxiv.org/abs/1708.03888

| where | deviation, and the setting that gives it |
|---|---|
| paper, Flax since 2020 | none; Flax before took r = 0 where a norm is 0 |
| optax | r = c ‖p‖ / (‖g + λp‖ + ε): `ratio_of="sum"` |
| MXNet 2.0 | ε = 1e-8, clipping after the norm is taken: `clip_inside`; momentum 0 by default |
| MXNet 1.9 | ε = 0; μ times the rate over the rate before: `momentum_correction=True`, there for the first tensors |
| timm | rate outside, ε = 1e-8; scales only decayed tensors (`scaled=False` for the others) unless `always_adapt` |
| pytorch_optimizer | rate outside; `one_at_zero_gradient=False`; vectors neither scaled nor decayed |

Which tensors are scaled is the caller's choice: a group with `scaled=False` has r = 1, for biases and normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.errors import RuleError
from descend.machine import number
from descend.optim.rules.base import Rule, check_choice, check_fraction, check_nonnegative

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["LARS", "LARSState"]


class LARSState(NamedTuple):
    """The state of LARS for a tensor."""

    b: Tensor | None  # momentum buffer, shaped like p
    lr: Tensor | None  # the rate before, one float64 number, for momentum correction


@dataclass(frozen=True)
class LARS(Rule):
    """Layer-wise adaptive rate scaling.

    Args:
        momentum: μ in [0, 1).
        trust: c, the part of a tensor's length moved at lr = 1; above or equal to 0.
        eps: ε, at least 0.
        rate_inside: Put lr inside the momentum buffer.
        nesterov: Step from the scaled gradient plus μ times the new buffer.
        dampening: τ in [0, 1).
        one_at_zero_gradient: Take r = 1 where ‖g‖ is 0; else only where the whole denominator is 0.
        ratio_of: "parts" divides by ‖g‖ + λ‖p‖, "sum" by ‖g + λp‖.
        momentum_correction: Multiply μ by the rate over the rate before.
        clip_inside: Clip each entry of g to [−clip_inside, clip_inside] after its norm is taken.

    Raises:
        RuleError: a number is out of range, or a setting needs momentum and there is none.
    """

    default_lr: ClassVar[float] = 1.0

    momentum: float = 0.9
    trust: float = 1e-3
    eps: float = 0.0
    rate_inside: bool = True
    nesterov: bool = False
    dampening: float = 0.0
    one_at_zero_gradient: bool = True
    ratio_of: str = "parts"
    momentum_correction: bool = False
    clip_inside: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self, "momentum", "dampening")
        check_nonnegative(self, "trust", "eps")
        check_choice(self, "ratio_of", ("parts", "sum"))
        if self.clip_inside is not None:
            check_nonnegative(self, "clip_inside")
        if not self.momentum and (self.nesterov or self.dampening or self.momentum_correction):
            raise RuleError(
                "LARS: nesterov, dampening and momentum_correction act on momentum, which is 0: give momentum"
            )

    def init(self, p: Tensor) -> LARSState:
        """A buffer of zeros when there is momentum, and no rate before."""
        b = torch.zeros_like(p) if self.momentum else None
        return LARSState(b, number(p) if self.momentum_correction else None)

    def update(
        self,
        g: Tensor,
        p: Tensor,
        s: LARSState,
        lr: Tensor,
        decay: Tensor,
        scaled: Tensor,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, LARSState]:
        """One step of the equations above."""
        u = self._ratio(g, p, decay, scaled, norm) * (self._clipped(g) + decay * p)
        if self.rate_inside:
            u = lr * u
        b, now = s.b, None
        if b is not None:
            mu: float | Tensor = self.momentum
            if s.lr is not None:
                mu = mu * torch.where(s.lr > 0, lr / torch.where(s.lr > 0, s.lr, 1.0), 1.0)
                now = lr + torch.zeros_like(s.lr)
            b = mu * b + (1 - self.dampening) * u
            u = u + self.momentum * b if self.nesterov else b
        return p - (u if self.rate_inside else lr * u), LARSState(b, now)

    def _clipped(self, g: Tensor) -> Tensor:
        return g if self.clip_inside is None else g.clamp(-self.clip_inside, self.clip_inside)

    def _ratio(self, g: Tensor, p: Tensor, decay: Tensor, scaled: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        length = norm(p)
        size = norm(g + decay * p) if self.ratio_of == "sum" else norm(g)
        below = size + self.eps + (0.0 if self.ratio_of == "sum" else decay * length)
        both = (length > 0) & ((size if self.one_at_zero_gradient else below) > 0) & (scaled > 0)
        ones = torch.ones_like(below)
        return torch.where(both, self.trust * length / torch.where(both, below, ones), ones)
