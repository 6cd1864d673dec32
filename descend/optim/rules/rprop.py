"""Rprop: each weight has a step of its own that grows while its gradient keeps its sign.

    ηₜ = η₊ if gₜ gₜ₋₁ > 0, η₋ if gₜ gₜ₋₁ < 0, else 1
    Δₜ = clamp(ηₜ Δₜ₋₁, Δ_min, Δ_max)            Δ₀ = lr
    gₜ ← 0 where gₜ gₜ₋₁ < 0                      pₜ = pₜ₋₁ − sign(gₜ) Δₜ

Shapes: g, Δ and p are shaped alike.
Units:  Δ and lr are in units of p. lr is read at the first update only.
Source: Riedmiller and Braun 1993; without weight-backtracking ("iRprop−"): Igel and Hüsken 2000

| where | deviation |
|---|---|
| Riedmiller and Braun | takes the last step back where the sign flips; not supported |
| torch `Rprop` | none |
| optax `rprop` | makes the move of the step before, towards the gradient; not supported |

For gradients of all data: the noise of mini-batches flips signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.arguments import check_number, require
from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_fraction, check_positive

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Rprop", "RpropState"]


class RpropState(NamedTuple):
    """The state of Rprop for a tensor; both entries are shaped like it."""

    g: Tensor  # the gradient before, 0 where its sign had flipped
    delta: Tensor  # Δ


@dataclass(frozen=True)
class Rprop(Rule):
    """Resilient propagation.

    Args:
        eta_minus: η₋ in [0, 1).
        eta_plus: η₊, above 1.
        step_min: Δ_min, above 0, in units of p.
        step_max: Δ_max, at least step_min, in units of p.

    Raises:
        RuleError: a number is out of range.
    """

    default_lr: ClassVar[float] = 0.01

    eta_minus: float = 0.5
    eta_plus: float = 1.2
    step_min: float = 1e-6
    step_max: float = 50.0

    def __post_init__(self) -> None:
        check_fraction(self, "eta_minus")
        check_positive(self, "step_min", "step_max")
        require(
            check_number("eta_plus", self.eta_plus, above=1),
            check_number("step_max", self.step_max, at_least=self.step_min),
            where="Rprop",
            error=RuleError,
        )

    def init(self, p: Tensor) -> RpropState:
        """No gradient yet; the first update sets the step."""
        return RpropState(g=torch.zeros_like(p), delta=torch.zeros_like(p))

    def update(self, g: Tensor, p: Tensor, s: RpropState, t: Tensor, lr: Tensor) -> tuple[Tensor, RpropState]:
        """One step of the equations above."""
        same = g * s.g
        eta = torch.where(same < 0, self.eta_minus, torch.ones_like(g))
        eta = torch.where(same > 0, self.eta_plus, eta)
        before = torch.where(t == 1, lr, s.delta)
        delta = (before * eta).clamp(self.step_min, self.step_max)
        g = torch.where(same < 0, torch.zeros_like(g), g)
        return p - g.sign() * delta, RpropState(g, delta)
