"""SGLD: half a gradient step plus noise, so that the weights wander over the posterior.

    pₜ = pₜ₋₁ − lr/2 gₜ + √(T lr) ξₜ            ξ standard normal

Shapes: g, ξ and p are shaped alike.
Units:  lr is in units of p², g is the gradient of the negative log posterior of all data, not of its mean.
Source: Welling and Teh 2011, eq. 4, https://www.stats.ox.ac.uk/~teh/research/compstats/WelTeh2011a.pdf

| where | deviation |
|---|---|
| paper | its rate falls to zero; here that is the schedule's work. T = 1 |
| MXNet `SGLD` | none, T = 1; neither clipping nor rescaling of the gradient changes the noise |
| optax `noisy_sgd` | the noise falls with the count by a law of its own; not supported |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from descend.optim.rules.base import Rule, check_nonnegative

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["SGLD"]


@dataclass(frozen=True)
class SGLD(Rule):
    """Stochastic gradient Langevin dynamics.

    Args:
        temperature: T, at least 0; below 1 is a colder posterior, 0 is half-speed SGD.

    Raises:
        RuleError: temperature is out of range.
    """

    default_lr: ClassVar[float] = 0.1

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_nonnegative(self, "temperature")

    def update(self, g: Tensor, p: Tensor, lr: Tensor, noise: Callable[[], Tensor]) -> tuple[Tensor, None]:
        """One step of the equation above."""
        return p - lr / 2 * g + (self.temperature * lr).sqrt() * noise(), None
