"""Lion: the sign of a short running mean, while a longer one is remembered.

    dₜ = sign(β₁ mₜ₋₁ + (1 − β₁) gₜ)            then the engine sets p ← p − lr dₜ
    mₜ = β₂ mₜ₋₁ + (1 − β₂) gₜ

Shapes: g, m and d are shaped like p; sign(0) = 0.
Units:  d is a pure number of size 1, so lr is what every weight moves: 3 to 10 times below AdamW's, λ as much above.
Source: Chen et al. 2023, Algorithm 2, https://arxiv.org/abs/2302.06675

| where | deviation |
|---|---|
| paper, authors' code, timm, optax `lion` | none; the decay is decoupled in all of them, as by default here |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Lion", "LionState"]


class LionState(NamedTuple):
    """The state of Lion for a tensor."""

    m: Tensor  # running mean of g, shaped like p


@dataclass(frozen=True)
class Lion(Rule):
    """Lion.

    Args:
        beta1: β₁ in [0, 1), for the sign.
        beta2: β₂ in [0, 1), for the memory.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 1e-4
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.9
    beta2: float = 0.99

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")

    def init(self, p: Tensor) -> LionState:
        """Zeros."""
        return LionState(m=torch.zeros_like(p))

    def direction(self, g: Tensor, s: LionState) -> tuple[Tensor, LionState]:
        """One step of the equations above."""
        d = (self.beta1 * s.m + (1 - self.beta1) * g).sign()
        return d, LionState(m=self.beta2 * s.m + (1 - self.beta2) * g)
