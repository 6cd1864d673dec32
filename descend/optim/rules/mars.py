"""MARS: Adam or Lion on a gradient whose variance is reduced by the gradient before it.

    c = gₜ + γ β₁/(1 − β₁) (gₜ − gₜ₋₁)        c ← c / max(1, ‖c‖)                      g₀ = 0
    mₜ = β₁ mₜ₋₁ + (1 − β₁) c                  vₜ = β₂ vₜ₋₁ + (1 − β₂) c²
    "adamw"  dₜ = m̂ / (√v̂ + ε) + λ pₜ₋₁       m̂ = mₜ / (1 − β₁ᵗ), v̂ = vₜ / (1 − β₂ᵗ)
    "lion"   dₜ = sign(mₜ) + λ pₜ₋₁            then the engine sets p ← p − lr dₜ
    amsgrad puts the largest v so far in the place of vₜ

Shapes: g, c, m, v and d are shaped like p; ‖c‖ is a number for each tensor.
Units:  d is a pure number of size about 1; γ = 0 is Adam or Lion on a clipped gradient.
Source: Yuan et al. 2024, Algorithms 1 to 3, https://arxiv.org/abs/2411.10438

| where | deviation, and the setting that gives it |
|---|---|
| paper | gₜ₋₁ is of the present samples at the last weights ("exact"); here and by default there of the last samples |
| authors' code `MARS` | tensors that are no matrices go under AdamW with a rate of their own, unless `optimize_1d` |
| ... with zero_grad(set_to_none=False) | its last gradient is a reference, so the difference is 0 (not copied) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_choice, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["MARS", "MARSState"]


class MARSState(NamedTuple):
    """The state of MARS for a tensor; all entries are shaped like it."""

    m: Tensor  # running mean of c
    g: Tensor  # the last gradient
    v: Tensor | None = None  # running mean of c²
    v_max: Tensor | None = None  # largest v so far, for amsgrad


@dataclass(frozen=True)
class MARS(Rule):
    """MARS on AdamW or on Lion.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1); without effect on Lion.
        gamma: γ, at least 0: how far the difference of gradients is followed.
        eps: ε, at least 0; without effect on Lion.
        base: "adamw" or "lion".
        amsgrad: Divide by the largest v so far.

    Raises:
        RuleError: a number is out of range, or base is none of the two.
    """

    default_lr: ClassVar[float] = 3e-3
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.95
    beta2: float = 0.99
    gamma: float = 0.025
    eps: float = 1e-8
    base: str = "adamw"
    amsgrad: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "gamma", "eps")
        check_choice(self, "base", ("adamw", "lion"))

    def init(self, p: Tensor) -> MARSState:
        """Zeros."""
        m, g, v, v_max = (torch.zeros_like(p) for _ in range(4))
        adam = self.base == "adamw"
        return MARSState(m, g, v if adam else None, v_max if adam and self.amsgrad else None)

    def direction(
        self, g: Tensor, p: Tensor, s: MARSState, t: Tensor, decay: Tensor, norm: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, MARSState]:
        """One step of the equations above."""
        c = g + self.gamma * self.beta1 / (1 - self.beta1) * (g - s.g)
        c = c / norm(c).clamp(min=1.0)
        m = self.beta1 * s.m + (1 - self.beta1) * c
        if s.v is None:
            return m.sign() + decay * p, MARSState(m, g)
        v = self.beta2 * s.v + (1 - self.beta2) * c * c
        v_max = None if s.v_max is None else torch.maximum(s.v_max, v)
        root = ((v if v_max is None else v_max) / (1 - self.beta2**t)).sqrt() + self.eps
        return quotient(m / (1 - self.beta1**t), root, self.eps) + decay * p, MARSState(m, g, v, v_max)
