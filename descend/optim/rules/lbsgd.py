"""LBSGD: momentum SGD for large batches made of several small ones, with a warm-up of the rate.

    aₜ = aₜ₋₁ + gₜ                     n = begin_epoch · updates_per_epoch + t counts the small batches
    when n is a multiple of B:         ḡ = aₜ / B,  aₜ = 0
        bₙ = μ b + lr f (clip(ḡ) + λ p)        p ← p − bₙ
    otherwise nothing else changes

    f = B if n ≥ N;  1 if N ≤ 1;  else with x = n / N and N = warmup_epochs · updates_per_epoch
        linear 1 + (B − 1) x      power2 1 + (B − 1) x²      sqrt 1 + (B − 1) √x      any other word 1
    f = √(‖p‖² / (‖ḡ‖² + λ‖p‖² + 1e-18)), between 0.01 and 100, for "lars", with no warm-up

Shapes: g, a, b and p are shaped alike; f is one number a tensor.
Units:  as SGD's; the rate ends at B = `batch_scale` times lr.
Source: MXNet 1.9's optimizer of this name (no paper); linear warm-up: Goyal et al. 2017, https://arxiv.org/abs/1706.02677

| where | deviation |
|---|---|
| MXNet 1.9 | with a schedule, its first tensor lags one update behind the others (not copied) |
| MXNet 1.9 | a gradient array that is used again makes its first big batch 2 g₂ (not copied) |

The name promises layer-wise scaling; only the "lars" strategy has any, and its ratio is not that of LARS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_count, check_fraction, check_nonnegative, check_positive

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["LBSGD", "LBSGDState"]


class LBSGDState(NamedTuple):
    """The state of LBSGD for a tensor."""

    a: Tensor  # sum of gradients since the last update, shaped like p
    b: Tensor | None  # momentum buffer, shaped like p


@dataclass(frozen=True)
class LBSGD(Rule):
    """Large-batch SGD.

    Args:
        momentum: μ in [0, 1).
        batch_scale: B, the number of small batches in a big one, at least 1.
        warmup_strategy: "linear", "power2", "sqrt", "lars", or any other word for a jump at the end.
        warmup_epochs: Length of the warm-up.
        updates_per_epoch: Small batches in an epoch; it only sets N and where n starts.
        begin_epoch: Where n starts. Off a multiple of B, the first big batch is short and still divided by B.
        clip_inside: Clip each entry of ḡ to [−clip_inside, clip_inside].
        norm_scale: Multiplies ‖ḡ‖ in the "lars" strategy (MXNet takes the norm before it rescales the gradient).

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 0.01

    momentum: float = 0.0
    batch_scale: int = 1
    warmup_strategy: str = "linear"
    warmup_epochs: float = 5
    updates_per_epoch: int = 32
    begin_epoch: int = 0
    clip_inside: float | None = None
    norm_scale: float = 1.0

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_nonnegative(self, "warmup_epochs", "updates_per_epoch", "begin_epoch")
        check_positive(self, "norm_scale")
        check_count(self, "batch_scale")
        if self.clip_inside is not None:
            check_nonnegative(self, "clip_inside")

    def init(self, p: Tensor) -> LBSGDState:
        """Zeros."""
        return LBSGDState(torch.zeros_like(p), torch.zeros_like(p) if self.momentum else None)

    def update(
        self,
        g: Tensor,
        p: Tensor,
        s: LBSGDState,
        t: Tensor,
        lr: Tensor,
        decay: Tensor,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, LBSGDState]:
        """One step of the equations above."""
        n = self.begin_epoch * self.updates_per_epoch + t
        full = torch.remainder(n, self.batch_scale) == 0
        a = s.a + g
        mean = a / self.batch_scale
        f = self._layer_factor(mean, p, decay, norm) if self.warmup_strategy == "lars" else self.factor(n)
        clipped = mean if self.clip_inside is None else mean.clamp(-self.clip_inside, self.clip_inside)
        step = lr * f * (clipped + decay * p)
        b = None if s.b is None else torch.where(full, self.momentum * s.b + step, s.b)
        moved = p - (step if b is None else b)
        return torch.where(full, moved, p), LBSGDState(torch.where(full, torch.zeros_like(a), a), b)

    def factor(self, n: Tensor) -> Tensor:
        """f of the n-th small batch, for every strategy but "lars"."""
        N = self.warmup_epochs * self.updates_per_epoch
        target = float(self.batch_scale) * torch.ones_like(n)
        if N <= 1:
            return torch.where(n >= N, target, torch.ones_like(n))
        x = n / N
        shapes = {"linear": x, "power2": x * x, "sqrt": x.sqrt()}
        rising = 1 + (self.batch_scale - 1) * shapes.get(self.warmup_strategy, torch.zeros_like(x))
        return torch.where(n >= N, target, rising)

    def _layer_factor(self, mean: Tensor, p: Tensor, decay: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        p2, g2 = norm(p) ** 2, (self.norm_scale * norm(mean)) ** 2
        return (p2 / (g2 + decay * p2 + 1e-18)).sqrt().clamp(0.01, 100.0)
