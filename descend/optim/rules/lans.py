"""LANS: LAMB with a normalised gradient and a Nesterov step made of two stretched halves.

    g ← g / ‖g‖                    0 where ‖g‖ is 0
    m, v, m̂, v̂ as Adam's
    u₁ = m̂ / (√v̂ + ε) + λ p        u₂ = g / (√v̂ + ε) + λ p
    d = β₁ r₁ u₁ + (1 − β₁) r₂ u₂          rᵢ = φ(‖p‖) / ‖uᵢ‖, 1 where either is 0; then the engine sets p ← p − lr d

Shapes: g, m, v, u and d are shaped like p; r₁ and r₂ are one number a tensor.
Units:  ‖d‖ is at most ‖p‖, so lr is the part of its length that a tensor moves.
Source: Zheng et al. 2020, Algorithm 2, https://arxiv.org/abs/2006.13484

| where | deviation, and the setting that gives it |
|---|---|
| paper | none |
| MXNet 2.0 `LANS` | clips after normalising: `clip_inside`; a gradient of zeros gives NaN (not copied) |
| ... without its kernel | the second half decays the weight that the first half has moved: `sequential=True` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient
from descend.optim.rules.lamb import LAMBState, bounded, check_bounds, trust_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["LANS"]


@dataclass(frozen=True)
class LANS(Rule):
    """LAMB with normalised gradients and Nesterov momentum.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        lower_bound: Least ‖p‖ that the ratios are taken from, or None.
        upper_bound: Largest ‖p‖ that the ratios are taken from, or None.
        sequential: Form u₂'s decay from the weight that the first half has moved.
        clip_inside: Clip each entry of the normalised gradient to [−clip_inside, clip_inside].

    Raises:
        RuleError: a number is out of range, or the bounds cross.
    """

    default_lr: ClassVar[float] = 1e-3
    default_weight_decay: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    lower_bound: float | None = None
    upper_bound: float | None = None
    sequential: bool = False
    clip_inside: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")
        check_bounds(self, self.lower_bound, self.upper_bound)
        if self.clip_inside is not None:
            check_nonnegative(self, "clip_inside")

    def init(self, p: Tensor) -> LAMBState:
        """Zero moments."""
        return LAMBState(m=torch.zeros_like(p), v=torch.zeros_like(p))

    def direction(
        self,
        g: Tensor,
        p: Tensor,
        s: LAMBState,
        t: Tensor,
        lr: Tensor,
        decay: Tensor,
        scaled: Tensor,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, LAMBState]:
        """One step of the equations above."""
        size = norm(g)
        g = g / torch.where(size > 0, size, torch.ones_like(size))
        if self.clip_inside is not None:
            g = g.clamp(-self.clip_inside, self.clip_inside)
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        root = (v / (1 - self.beta2**t)).sqrt() + self.eps
        length = bounded(norm(p), self.lower_bound, self.upper_bound)
        u1 = quotient(m / (1 - self.beta1**t), root, self.eps) + decay * p
        first = self.beta1 * trust_ratio(length, norm(u1), scaled) * u1
        u2 = quotient(g, root, self.eps) + decay * (p - lr * first if self.sequential else p)
        return first + (1 - self.beta1) * trust_ratio(length, norm(u2), scaled) * u2, LAMBState(m, v)
