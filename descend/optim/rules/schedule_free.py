"""Schedule-free SGD and AdamW: an average of the iterates in the place of a falling learning rate.

    The weights that the engine holds, p, are y: where gradients are taken. x is the average, which is evaluated.
    uₜ = gₜ + λ y                  AdamW: gₜ / (√(vₜ / (1 − β₂ᵗ)) + ε) + λ y,  vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    zₜ = zₜ₋₁ − lr uₜ
    cₜ = wₜ / Σ w,  wₜ = tʳ (largest lr so far)^k
    xₜ = (1 − cₜ) xₜ₋₁ + cₜ zₜ      yₜ = (1 − β) zₜ + β xₜ

Shapes: g, u, v, x, y and z are shaped like p; Σ w and the largest lr are one number a tensor.
Units:  SGD: as SGD's, about 10 times larger; AdamW: as AdamW's. Use a warm-up and then a constant rate.
Source: Defazio et al. 2024, https://arxiv.org/abs/2405.15682

| where | deviation |
|---|---|
| paper | weights of the average by the square of the largest rate so far, as in the authors' code |
| authors' code | its warm-up is inside; here it is the schedule's |
| optax `contrib.schedule_free` | wraps any rule; here SGD and AdamW |

x is not stored: `averaged(p, s)` gives it from y and z. Evaluate and export x, not y: `with optimizer.averaged(): ...`
holds x in the weights. A checkpoint to continue from holds y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.errors import RuleError
from descend.machine import number
from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ScheduleFreeAdamW", "ScheduleFreeSGD", "ScheduleFreeState"]


class ScheduleFreeState(NamedTuple):
    """What a schedule-free rule remembers of a tensor."""

    z: Tensor  # the iterate that takes whole steps, shaped like p
    v: Tensor | None  # running mean of g², shaped like p, for AdamW
    weight_sum: Tensor  # Σ w, one float64 number
    lr_max: Tensor  # the largest lr so far, one float64 number


def _init(p: Tensor, v: Tensor | None) -> ScheduleFreeState:
    return ScheduleFreeState(p.detach().clone(), v, number(p), number(p))


def _move(
    rule: ScheduleFreeSGD | ScheduleFreeAdamW, u: Tensor, y: Tensor, s: ScheduleFreeState, t: Tensor, lr: Tensor
) -> tuple[Tensor, ScheduleFreeState]:
    """x, y and z after a step along u, written with y and z alone."""
    lr_max = torch.maximum(s.lr_max, lr)
    w = t**rule.r * lr_max**rule.weight_lr_power
    weight_sum = s.weight_sum + w
    c = quotient(w, weight_sum)
    y = y + c * (s.z - y) - lr * (1 - rule.beta * (1 - c)) * u
    return y, s._replace(z=s.z - lr * u, weight_sum=weight_sum, lr_max=lr_max)


def _averaged(beta: float, y: Tensor, z: Tensor) -> Tensor:
    return y + (1 - 1 / beta) * (z - y)


def _check_beta(rule: Rule, beta: float) -> None:
    check_fraction(rule, "beta")
    if beta == 0:
        raise RuleError(f"{type(rule).__name__}: beta must be above 0, or the average could not be had from y and z")


@dataclass(frozen=True)
class ScheduleFreeSGD(Rule):
    """Schedule-free SGD.

    Args:
        beta: β in (0, 1), how close to the average gradients are taken.
        r: Power of t in the weights of the average.
        weight_lr_power: k, power of the largest rate in them.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 1.0

    beta: float = 0.9
    r: float = 0.0
    weight_lr_power: float = 2.0

    def __post_init__(self) -> None:
        _check_beta(self, self.beta)
        check_nonnegative(self, "r", "weight_lr_power")

    def init(self, p: Tensor) -> ScheduleFreeState:
        """x = y = z."""
        return _init(p, None)

    def update(
        self, g: Tensor, p: Tensor, s: ScheduleFreeState, t: Tensor, lr: Tensor
    ) -> tuple[Tensor, ScheduleFreeState]:
        """One step of the equations above."""
        return _move(self, g, p, s, t, lr)

    def averaged(self, p: Tensor, s: ScheduleFreeState) -> Tensor:
        """x, the weights to evaluate."""
        return _averaged(self.beta, p, s.z)


@dataclass(frozen=True)
class ScheduleFreeAdamW(Rule):
    """Schedule-free AdamW; β takes the place of Adam's β₁.

    Args:
        beta: β in (0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        r: Power of t in the weights of the average.
        weight_lr_power: k, power of the largest rate in them.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 2.5e-3
    default_decay: ClassVar[str] = "decoupled"

    beta: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    r: float = 0.0
    weight_lr_power: float = 2.0

    def __post_init__(self) -> None:
        _check_beta(self, self.beta)
        check_fraction(self, "beta2")
        check_nonnegative(self, "eps", "r", "weight_lr_power")

    def init(self, p: Tensor) -> ScheduleFreeState:
        """x = y = z, and a zero moment."""
        return _init(p, torch.zeros_like(p))

    def update(
        self, g: Tensor, p: Tensor, s: ScheduleFreeState, t: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, ScheduleFreeState]:
        """One step of the equations above."""
        before = torch.zeros_like(g) if s.v is None else s.v
        v = self.beta2 * before + (1 - self.beta2) * g * g
        u = quotient(g, (v / (1 - self.beta2**t)).sqrt() + self.eps, self.eps) + decay * p
        return _move(self, u, p, s._replace(v=v), t, lr)

    def averaged(self, p: Tensor, s: ScheduleFreeState) -> Tensor:
        """x, the weights to evaluate."""
        return _averaged(self.beta, p, s.z)
