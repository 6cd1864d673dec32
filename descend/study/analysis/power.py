"""What a comparison can find, and how many seeds or searches a difference takes.

    seeds_needed       two settings, n re-runs each, by Student's t; of medians of normal values π/2 times as many
    searches_needed    two arms, one number a search, by Welch's t: the test that `rank` makes

The noncentral t gives the probability of finding a difference d = δ sd with n values each:

    P(|T| > t_{2n−2, 1−α/2}),   T of 2n − 2 degrees of freedom and noncentrality δ √(n/2)

At α = 0.05 and a power of 0.8, d = sd takes 17 values each and d = sd/2 takes 64.

Welch's t of two arms that scatter alike is the same number, judged by Satterthwaite's degrees of freedom of both
variances U and V, each at least a share of their mean over all arms, and at least what the seeds say (see `ranking`):

    P(found) = E[ Φ(δ √(n/2) − L) ],    L = √((U + V)/2) t_{f, 1−α/2},    f = (n − 1) (U + V)²/(U² + V²)

The mean is that over 20,000 draws of U, V and the variances of the other arms, the same for every n. Where 4 searches
or more are paired, either of two tests may find the difference, so L is the smaller one of two limits; the covariance
of n pairs that are not alike is drawn too (Wishart, by Bartlett's decomposition).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import ConfigurationError
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "PAIRED_FROM",
    "PAIRED_SHARE",
    "SHARE_OF_ARMS",
    "detectable_by_searches",
    "detectable_difference",
    "detectable_in_spreads",
    "level_of_a_pair",
    "searches_needed",
    "seeds_needed",
]

_LARGEST = 10**12  # values an arm; a difference that takes more is none
_MANY = 200  # searches from which both tests have the same power to four digits
_DRAWN = 20_000  # variances of two arms
PAIRED_FROM = 4  # searches an arm; of fewer the differences within a search show too little of how they vary
PAIRED_SHARE = 0.6  # of the level, at which each of two tests is made where searches are paired
SHARE_OF_ARMS = 0.3  # of the variance between searches pooled over all arms, as a floor under that of one


def level_of_a_pair(arms: int, level: float) -> float:
    """The level at which Holm's correction tests one of the pairs of the best arm, on average over these pairs.

    The pairs of an arm that is better than the others are found before the rest, so the later ones of them are tested
    at a larger level than the first one, which is tested at level/pairs.

    Args:
        arms: Of the study.
        level: Of the study.
    """
    return level / (math.comb(arms, 2) - (arms - 2) / 2)


@functools.lru_cache(maxsize=256)
def detectable_by_searches(
    searches: int, alpha: float, power: float = 0.8, *, paired: bool = False, arms: int = 2, floor: float = 0.0
) -> float:
    """The difference that the test of `rank` finds with probability `power`, in standard deviations between searches.

    Args:
        searches: Of each arm, at least 2; the arms scatter alike.
        alpha: Level of the two-sided test.
        power: Probability of finding it.
        paired: Whether both arms have the same seeds, which are not alike: of those that are, it finds less.
        arms: Of the study, over which the variance is pooled; `alpha` is that of one pair.
        floor: The least variance that the seeds of re-runs admit, in variances between searches, from 0 to 1.
    """
    paired = paired and searches >= PAIRED_FROM
    if searches < 2 or searches > _MANY:
        return detectable_in_spreads(searches, alpha * PAIRED_SHARE if paired else alpha, power)
    check_fraction(alpha, "alpha")
    check_fraction(power, "power")
    functions = scipy("special", "the power of Welch's t")
    limits = _limits(searches, alpha, paired, arms, floor)
    low, high = 0.0, float(limits.max()) + 10.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if float(functions.ndtr(middle - limits).mean()) < power:
            low = middle
        else:
            high = middle
    return high * math.sqrt(2 / searches)


def _limits(searches: int, alpha: float, paired: bool, arms: int, floor: float) -> NDArray[np.float64]:
    """What a difference must exceed to be found, in standard errors of equal arms of variance 1: one a draw."""
    functions = scipy("special", "the power of Student's t")
    freedom, tail = searches - 1, 1 - (alpha * PAIRED_SHARE if paired else alpha) / 2
    u, v, both, pooled = _variances(searches, arms)
    least = np.maximum(SHARE_OF_ARMS * pooled, floor)
    x, y = np.maximum(u, least), np.maximum(v, least)
    welch = np.sqrt((x + y) / 2) * functions.stdtrit(freedom * (x + y) ** 2 / (x**2 + y**2), tail)
    if not paired:
        return welch
    return np.minimum(welch, np.sqrt((u + v - 2 * both) / 2) * functions.stdtrit(freedom, tail))


@functools.lru_cache(maxsize=32)
def _variances(searches: int, arms: int) -> tuple[NDArray[np.float64], ...]:
    """Draws of the variances of two arms, of their covariance, and of the variance pooled over all arms."""
    functions = scipy("special", "the quantiles of chi-square")
    draw, freedom = np.random.default_rng(0), searches - 1
    first, rest, others = draw.random((3, _DRAWN))
    mixed = draw.normal(size=_DRAWN)  # of the second arm, along the first one's deviations from its mean
    u = functions.chdtri(freedom, first) / freedom
    v = (mixed**2 + (functions.chdtri(freedom - 1, rest) if freedom > 1 else 0.0)) / freedom
    more = functions.chdtri((arms - 2) * freedom, others) / freedom if arms > 2 else 0.0
    return u, v, np.sqrt(u / freedom) * mixed, (u + v + more) / arms


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


def searches_needed(
    difference: float, sd: float, *, arms: int = 2, alpha: float = 0.05, power: float = 0.8, paired: bool = False
) -> int:
    """Searches an arm with which `rank` finds a difference with probability `power`.

    Args:
        difference: Between two arms, in the units of sd.
        sd: Standard deviation between the searches of an arm, each the median of its re-runs.
        arms: Of the study; all pairs are compared, see `level_of_a_pair`.
        alpha: Level of the study.
        power: Probability of finding it.
        paired: Whether all arms have the same seeds; what they have in common is not counted on.
    """
    if arms < 2:
        raise ConfigurationError(f"a comparison takes at least two arms, got {arms!r}")
    level = level_of_a_pair(arms, alpha)
    found = max(2, seeds_needed(difference, sd, alpha=level, power=power))  # Welch's t needs a few more
    while sd * detectable_by_searches(found, level, power, paired=paired, arms=arms) > difference:
        found += 1
    return found


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
