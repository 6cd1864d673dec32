"""What a comparison can find, and how many seeds or searches a difference takes: the power of Student's t.

    seeds_needed       two settings, n re-runs each; of medians of normal values π/2 times as many
    searches_needed    two arms, one number a search: the test that `rank` makes

The noncentral t gives the probability of finding a difference d = δ sd with n values each:

    P(|T| > t_{2n−2, 1−α/2}),   T of 2n − 2 degrees of freedom and noncentrality δ √(n/2)

At α = 0.05 and a power of 0.8, d = sd takes 17 values each and d = sd/2 takes 64.
"""

from __future__ import annotations

import math

from descend.errors import ConfigurationError
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction

__all__ = ["detectable_difference", "detectable_in_spreads", "searches_needed", "seeds_needed"]

_LARGEST = 10**12  # values an arm; a difference that takes more is none


def detectable_in_spreads(values: int, alpha: float, power: float = 0.8) -> float:
    """The difference that the test finds with probability `power`, in standard deviations of a value.

    Args:
        values: Of each arm, at least 2.
        alpha: Level of the two-sided test.
        power: Probability of finding it.
    """
    check_fraction(alpha, "alpha")
    check_fraction(power, "power")
    if values < 2:
        raise ConfigurationError(f"expected at least 2 values an arm, whose spread can be seen, and got {values!r}")
    functions = scipy("special", "the power of Student's t")
    freedom = 2 * values - 2
    critical = float(functions.stdtrit(freedom, 1 - alpha / 2))
    if freedom > 2000:  # where the normal distribution has the same six digits
        noncentrality = critical + float(functions.ndtri(power))
    else:
        noncentrality = float(functions.nctdtrinc(freedom, 1 - power, critical))
    return noncentrality * math.sqrt(2 / values)


def searches_needed(difference: float, sd: float, *, arms: int = 2, alpha: float = 0.05, power: float = 0.8) -> int:
    """Searches an arm with which `rank` finds a difference with probability `power`.

    Args:
        difference: Between two arms, in the units of sd.
        sd: Standard deviation between the searches of an arm, each the median of its re-runs.
        arms: Of the study; all pairs are compared, so the level of each is α/pairs.
        alpha: Level of the study.
        power: Probability of finding it.
    """
    if arms < 2:
        raise ConfigurationError(f"a comparison takes at least two arms, got {arms!r}")
    return seeds_needed(difference, sd, alpha=alpha / math.comb(arms, 2), power=power)


def seeds_needed(
    difference: float, sd: float, *, alpha: float = 0.05, power: float = 0.8, of_medians: bool = False
) -> int:
    """Seeds an arm with which a difference is found with probability `power` by Student's t at `alpha`, two-sided.

    Args:
        difference: Between the arms, in the units of sd.
        sd: Standard deviation from seed to seed.
        alpha: Level of the test.
        power: Probability of finding it.
        of_medians: Whether medians are compared, and not means.
    """
    if not (difference > 0 and sd >= 0 and math.isfinite(sd)):
        raise ConfigurationError(f"expected difference > 0 and a finite sd ≥ 0, and got {difference!r} and {sd!r}")
    low, high = 1, 2
    while detectable_difference(sd, high, alpha=alpha, power=power, of_medians=of_medians) > difference:
        low, high = high, 2 * high
        if high > _LARGEST:
            raise ConfigurationError(
                f"a difference of {difference!r} is too small beside an sd of {sd!r} to be counted for"
            )
    while high - low > 1:
        middle = (low + high) // 2
        if detectable_difference(sd, middle, alpha=alpha, power=power, of_medians=of_medians) > difference:
            low = middle
        else:
            high = middle
    return high


def detectable_difference(
    sd: float, seeds: int, *, alpha: float = 0.05, power: float = 0.8, of_medians: bool = False
) -> float:
    """The difference that `seeds` runs an arm find with probability `power` by Student's t at `alpha`, two-sided.

    Args:
        sd: Standard deviation from seed to seed, or from search to search.
        seeds: Runs an arm, at least 2.
        alpha: Level of the test.
        power: Probability of finding it.
        of_medians: Whether medians are compared, and not means.
    """
    if not (sd >= 0 and math.isfinite(sd)):
        raise ConfigurationError(f"expected a finite sd ≥ 0, and got {sd!r}")
    return sd * (math.sqrt(math.pi / 2) if of_medians else 1.0) * detectable_in_spreads(seeds, alpha, power)
