"""How sure a number is: medians, counts of successes, differences.

    k of n            Clopper and Pearson: the set of p that an exact binomial test does not reject
    k1/n1, k2/n2      Fisher: hypergeometric, both margins fixed
    median            [x_(r), x_(n+1−r)] with the largest r for which P(Bin(n, ½) < r) ≤ (1 − confidence)/2
    a − b             percentiles of the bootstrapped difference of medians
    many p-values     Holm's step-down adjustment

The interval of a median holds for any distribution, failures included, which stand as infinities. Five values have
none at 95 %: [min, max] of 5 covers 1 − 2/2⁵ = 93.75 %.

Source: Clopper and Pearson 1934; Fisher 1935; Holm 1979; David and Nagaraja 2003, section 7.1 (order statistics).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from descend.errors import ConfigurationError
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction, counts, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Interval",
    "compare_successes",
    "difference_interval",
    "holm",
    "median",
    "median_interval",
    "success_interval",
]


class Interval(NamedTuple):
    """From `low` to `high`, both included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the value lies in it."""
        return self.low <= value <= self.high

    @property
    def sign(self) -> int:
        """1 if all of it lies above 0, −1 if all lies below, else 0."""
        return (self.low > 0) - (self.high < 0)


def success_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """The probability of success behind k successes in n runs, by Clopper and Pearson.

    Raises:
        ConfigurationError: not 0 ≤ k ≤ n.
        MissingExtra: scipy is not installed.
    """
    k, n = counts(k, n)
    check_fraction(confidence, "confidence")
    found = scipy("stats", "an exact interval of a probability").binomtest(k, n).proportion_ci(confidence, "exact")
    return Interval(float(found.low), float(found.high))


def compare_successes(k1: int, n1: int, k2: int, n2: int) -> float:
    """Fisher's exact test that two probabilities of success are equal, two-sided.

    Returns:
        The p-value: the probability, given all margins, of a table at most as likely as this one.

    Raises:
        ConfigurationError: not 0 ≤ k ≤ n.
        MissingExtra: scipy is not installed.
    """
    k1, n1 = counts(k1, n1, "the first")
    k2, n2 = counts(k2, n2, "the second")
    table = [[k1, n1 - k1], [k2, n2 - k2]]
    return float(scipy("stats", "Fisher's exact test").fisher_exact(table).pvalue)


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones; infinite where half of the runs or more failed.

    Raises:
        ConfigurationError: the two middle ones are infinities of both signs, one of which is not a failure.
    """
    ordered = np.sort(numbers(values))
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    if math.isinf(low) and low == -high:
        raise ConfigurationError("one half of the values is -inf and the other inf, and a failure is one of them alone")
    return low if low == high else (low + high) / 2


def median_interval(values: Iterable[float], confidence: float = 0.95) -> Interval | None:
    """An interval of the median that holds for any distribution.

    Args:
        values: One for each seed; a failed run is inf or -inf.
        confidence: At least so often does such an interval hold the median.

    Returns:
        Two of the values; None if there are too few for the confidence, which are 5 and fewer at 95 %.
    """
    check_fraction(confidence, "confidence")
    ordered = np.sort(numbers(values))
    rank = _rank(len(ordered), (1 - confidence) / 2)
    return Interval(float(ordered[rank - 1]), float(ordered[-rank])) if rank else None


def _rank(n: int, tail: float) -> int:
    """The largest r with P(Bin(n, ½) < r) ≤ tail; 0 if there is none."""
    below, rank = 0, 0
    while rank < n and (below := below + math.comb(n, rank)) / 2**n <= tail:
        rank += 1
    return rank


def difference_interval(
    a: Sequence[float],
    b: Sequence[float],
    *,
    paired: bool = False,
    confidence: float = 0.95,
    repeats: int = 10_000,
    seed: int = 0,
) -> Interval:
    """An interval of median(a) − median(b), by the bootstrap over seeds.

    Args:
        a: One value for each seed.
        b: Likewise. With `paired`, a[i] and b[i] share their initial weights and the order of their samples.
        paired: Draw the same seeds for both, which leaves out what they have in common.
        confidence: Of the interval, approximately: a bootstrap of few values is too sure of itself.
        repeats: Bootstrap samples.
        seed: Of the draws.

    Returns:
        The interval; an end that no sample bounds is infinite.

    Raises:
        ConfigurationError: a value is NaN, or `paired` and the lengths differ.
    """
    check_fraction(confidence, "confidence")
    x, y = numbers(a, "a"), numbers(b, "b")
    if paired and len(x) != len(y):
        raise ConfigurationError(f"paired seeds: a has {len(x)} values and b has {len(y)}")
    draw = np.random.default_rng(seed)
    of_x = draw.integers(len(x), size=(repeats, len(x)))
    of_y = of_x if paired else draw.integers(len(y), size=(repeats, len(y)))
    ordered = np.sort(_minus(_medians(x[of_x]), _medians(y[of_y])))
    tail = (1 - confidence) / 2
    cut = int(tail * repeats)
    return Interval(float(ordered[cut]), float(ordered[-1 - cut]))


def _medians(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians of rows; two infinities of one sign have a mean."""
    ordered = np.sort(samples, axis=1)
    low, high = ordered[:, (ordered.shape[1] - 1) // 2], ordered[:, ordered.shape[1] // 2]
    return np.where(low == high, low, (low + high) / 2)


def _minus(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """a − b; 0 where both are the same infinity."""
    same = a == b
    return np.where(same, 0.0, np.where(same, 0.0, a) - np.where(same, 0.0, b))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests, so adjusted that each below α is a finding at α over all of them together.

    Returns:
        In the order given: max over the smaller p of (m − rank + 1) p, at most 1.
    """
    p = numbers(p_values, "p_values")
    if ((p < 0) | (p > 1)).any():
        raise ConfigurationError(f"p_values must be between 0 and 1, got {list(p_values)}")
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))).clip(max=1.0)
    result = np.empty_like(p)
    result[order] = adjusted
    return [float(value) for value in result]
