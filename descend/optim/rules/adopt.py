"""ADOPT: Adam that divides by the size of earlier gradients alone, and so converges with any β₂.

    t = 1:  v₁ = g₁², m₁ = 0, and nothing moves
    t > 1:  u = clip(gₜ / max(√vₜ₋₁, ε), ±(t − 1)^¼)        mₜ = β₁ mₜ₋₁ + (1 − β₁) u        vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
            dₜ = mₜ (+ λ pₜ₋₁ where the decay is decoupled)   then the engine sets p ← p − lr dₜ

Shapes: g, u, m, v and d are shaped like p.
Units:  d is a pure number of size about 1; there is no bias correction, since v starts at a square.
Source: Taniguchi et al. 2024, Algorithm 2, https://arxiv.org/abs/2411.02853

| where | deviation, and the setting that gives it |
|---|---|
| paper | none; the version without the clip (Algorithm 1, and the first code): `clip=False` |
| authors' code `ADOPT` | none; ε is a floor, not a term, as here; its decay is coupled unless `decouple=True` |
| timm `Adopt` | no clip by default: `clip=False` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_fraction, check_positive

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ADOPT", "ADOPTState"]


class ADOPTState(NamedTuple):
    """The state of ADOPT for a tensor; both entries are shaped like it."""

    m: Tensor  # running mean of u
    v: Tensor  # running mean of g²


@dataclass(frozen=True)
class ADOPT(Rule):
    """ADOPT, with the growing bound on each element.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, the least √v, above 0.
        clip: Whether u is bounded by (t − 1)^¼.
        decoupled: Whether the decay acts on the weights; False adds it to the gradient, as the authors' code does
            by default.

    Raises:
        RuleError: a number is out of range.
    """

    beta1: float = 0.9
    beta2: float = 0.9999
    eps: float = 1e-6
    clip: bool = True
    decoupled: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_positive(self, "eps")

    def init(self, p: Tensor) -> ADOPTState:
        """Zeros."""
        return ADOPTState(torch.zeros_like(p), torch.zeros_like(p))

    def direction(self, g: Tensor, p: Tensor, s: ADOPTState, t: Tensor, decay: Tensor) -> tuple[Tensor, ADOPTState]:
        """One step of the equations above."""
        g = g if self.decoupled else g + decay * p
        u = g / s.v.sqrt().clamp(min=self.eps)
        if self.clip:
            bound = (t - 1) ** 0.25
            u = torch.minimum(torch.maximum(u, -bound), bound)
        later = t > 1
        m = torch.where(later, self.beta1 * s.m + (1 - self.beta1) * u, s.m)
        v = torch.where(later, self.beta2 * s.v + (1 - self.beta2) * g * g, g * g)
        d = m + decay * p if self.decoupled else m
        return torch.where(later, d, torch.zeros_like(d)), ADOPTState(m, v)
