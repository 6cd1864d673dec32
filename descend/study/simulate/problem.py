"""The noisy quadratic: a training problem whose every expectation is known.

    risk  L = ½ Σ hᵢ E[θᵢ²]        gradient of a batch of B   gᵢ = hᵢ θᵢ + ξᵢ,   E[ξᵢ²] = cᵢ/B

Source: Zhang et al. 2019, https://arxiv.org/abs/1907.04164, section 3; the default is theirs: hᵢ = cᵢ = 1/i, 10⁴
dimensions, E[θᵢ²] = 1 at the start (risk 4.89), target risk 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Modes", "Quadratic"]


class Modes(NamedTuple):
    """Coordinates, those of nearly equal curvature gathered into one that counts several times; each (modes,)."""

    h: NDArray[np.float64]  # curvature
    c: NDArray[np.float64]  # variance of the gradient of one sample
    start: NDArray[np.float64]  # E[θ²] before the first step
    weight: NDArray[np.float64]  # how many coordinates it represents


@dataclass(frozen=True)
class Quadratic:
    """A noisy quadratic with curvatures and noise that fall as powers.

    Args:
        dimensions: d, coordinates 1 … d.
        curvature_power: hᵢ = i^−power.
        noise_power: cᵢ = i^−power.
        start: E[θᵢ²] before the first step.
        bins: Coordinates are gathered into at most so many ranges of equal ratio of i; 0 keeps every one.

    Raises:
        ConfigurationError: a number is out of range.
    """

    dimensions: int = 10_000
    curvature_power: float = 1.0
    noise_power: float = 1.0
    start: float = 1.0
    bins: int = 160

    def __post_init__(self) -> None:
        problems = [
            f"Quadratic: {name} must be >= {least}, got {value!r}"
            for name, value, least in (
                ("dimensions", self.dimensions, 1),
                ("curvature_power", self.curvature_power, 0),
                ("noise_power", self.noise_power, 0),
                ("bins", self.bins, 0),
            )
            if not value >= least
        ]
        if not self.start > 0:
            problems.append(f"Quadratic: start must be > 0, got {self.start!r}")
        if problems:
            raise ConfigurationError(problems)

    @cached_property
    def modes(self) -> Modes:
        """All coordinates, gathered. The first ones, which are far apart, stay alone."""
        i = np.arange(1, self.dimensions + 1, dtype=np.float64)
        h, c = i**-self.curvature_power, i**-self.noise_power
        if not self.bins or self.dimensions == 1:
            return Modes(h, c, np.full_like(h, self.start), np.ones_like(h))
        label = np.floor(np.log(i) / np.log(self.dimensions) * self.bins * (1 - 1e-9))
        _, members, count = np.unique(label, return_inverse=True, return_counts=True)

        def mean(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.bincount(members, weights=x) / count

        return Modes(mean(h), mean(c), np.full(len(count), self.start), count.astype(np.float64))

    @property
    def initial_risk(self) -> float:
        """½ Σ hᵢ E[θᵢ²] before the first step."""
        return float(0.5 * (self.modes.h * self.modes.start * self.modes.weight).sum())
