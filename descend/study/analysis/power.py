"""What a comparison could have seen, and how many seeds a difference takes.

    n = 2 ((z_{1−α/2} + z_power) sd / d)²        seeds an arm for a difference d of means, sd from seed to seed
    medians of normal values: π/2 times as many

At α = 0.05 and a power of 0.8, d = sd takes 16 seeds (25 for medians) and d = sd/2 takes 63 (99).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from descend.errors import ConfigurationError
from descend.study.analysis.values import check_fraction

__all__ = ["detectable_difference", "seeds_needed"]

_LARGEST_RATIO = 1e100  # of sd to difference, whose square is a number still


def _factor(alpha: float, power: float, of_medians: bool) -> float:
    check_fraction(alpha, "alpha")
    check_fraction(power, "power")
    normal = NormalDist()
    z = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    return 2 * z * z * (math.pi / 2 if of_medians else 1.0)


def seeds_needed(
    difference: float, sd: float, *, alpha: float = 0.05, power: float = 0.8, of_medians: bool = False
) -> int:
    """Seeds an arm with which a difference is found with probability `power` by a two-sided test at `alpha`.

    Args:
        difference: Between the arms, in the units of sd.
        sd: Standard deviation from seed to seed.
        alpha: Level of the test.
        power: Probability of finding it.
        of_medians: Whether medians are compared, and not means.
    """
    if not (difference > 0 and sd >= 0 and math.isfinite(sd)):
        raise ConfigurationError(f"expected difference > 0 and a finite sd ≥ 0, and got {difference!r} and {sd!r}")
    ratio = sd / difference
    if ratio > _LARGEST_RATIO:
        raise ConfigurationError(
            f"a difference of {difference!r} is too small beside an sd of {sd!r} to be counted for"
        )
    return max(2, math.ceil(_factor(alpha, power, of_medians) * ratio**2))


def detectable_difference(
    sd: float, seeds: int, *, alpha: float = 0.05, power: float = 0.8, of_medians: bool = False
) -> float:
    """The difference that `seeds` runs an arm would have found: "could have detected 0.3 points".

    Args:
        sd: Standard deviation from seed to seed, or from search to search.
        seeds: Runs an arm.
        alpha: Level of the test.
        power: Probability of finding it.
        of_medians: Whether medians are compared, and not means.
    """
    if not (seeds >= 1 and sd >= 0 and math.isfinite(sd)):
        raise ConfigurationError(f"expected seeds ≥ 1 and a finite sd ≥ 0, and got {seeds!r} and {sd!r}")
    return sd * math.sqrt(_factor(alpha, power, of_medians) / seeds)
