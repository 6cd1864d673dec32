"""How hard a thing is to tune, from the trials of its search alone.

    E_n = Σ_{i=n..N} v_(i) C(i−1, n−1)/C(N, n)          expected best of n of the N trials, v_(1) the worst
    F(target) = #{trials that reach it} / #{all trials}  failures stay in the denominator
    width = (largest rate that reaches the target) / (rate of the best trial)

E_n is a U-statistic: unbiased, n trials drawn without replacement. Quasi-random points are spread more evenly than
independent ones, so E_n is a little pessimistic for them and intervals are a little wide.

Source: Tang et al. 2020, https://aclanthology.org/2020.acl-main.246 (U-statistic); Sivaprasad et al. 2020 (probability
of being best); Nado et al. 2021, figure 2 (fraction of the space, best rate for each decay).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from descend.errors import ConfigurationError, Refused
from descend.study.analysis.intervals import Interval, success_interval
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction, listed, numbers, same_length, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "BestAgainstBudget",
    "Fraction",
    "Ridge",
    "RidgePoint",
    "best_against_budget",
    "best_rate_by_decay",
    "expected_best",
    "fraction_curve",
    "fraction_reaching",
    "probability_best",
    "stable_width",
]


def expected_best(values: Iterable[float], n: int, *, lower_is_better: bool = False) -> float:
    """The expected best of n trials, drawn from these without replacement.

    Args:
        values: Of all trials of a search; a failure is -inf, or inf where lower is better.
        n: Trials drawn, from 1 to their number.
        lower_is_better: Whether the best is the least.

    Returns:
        The U-statistic above; infinite if n trials may all fail.

    Raises:
        ConfigurationError: n is not from 1 to the number of values.
    """
    array = numbers(values)
    n = whole(n, "n")
    if not 1 <= n <= len(array):
        raise ConfigurationError(f"the best of {n} cannot be estimated from {len(array)} trials")
    sign = -1.0 if lower_is_better else 1.0
    return sign * float(_u_statistics(np.sort(sign * array)[None], n)[0])


@dataclass(frozen=True)
class BestAgainstBudget:
    """The best of n trials against n.

    Attributes:
        budgets: Numbers of trials.
        expected: The expected best of each, the U-statistic.
        median: The median of the best of each: the quantile 0.5^(1/n) of the trials.
        low: Lower end of an exact interval of that median, two order statistics, for any distribution of trials.
        high: Upper end. An end is infinite where no trial is far enough out for it.
        reliable_to: The largest budget whose interval has two ends; 0 if none has. It is about N/5.3 of N trials: the
            best of more than these may be better than anything that was seen.
    """

    budgets: tuple[int, ...]
    expected: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    reliable_to: int


def best_against_budget(
    values: Sequence[float], *, lower_is_better: bool = False, confidence: float = 0.95
) -> BestAgainstBudget:
    """`expected_best` and the median of the best for every budget, the latter with an exact interval.

    With X of the N trials below the quantile p, X is binomial of N and p, so P(v_(l) ≤ q_p ≤ v_(u)) is at least
    P(l ≤ X ≤ u − 1). A bootstrap of the expected best covers it too rarely: a maximum cannot be resampled upwards.

    Args:
        values: Of all trials of a search; a failure is -inf, or inf where lower is better.
        lower_is_better: Whether the best is the least.
        confidence: Of each interval by itself.
    """
    check_fraction(confidence, "confidence")
    sign = -1.0 if lower_is_better else 1.0
    ordered = np.sort(sign * numbers(values))
    count, budgets = len(ordered), range(1, len(ordered) + 1)
    padded = np.concatenate([[-math.inf], ordered, [math.inf]])
    quantiles = 0.5 ** (1 / np.arange(1, count + 1))
    binomial = scipy("stats", "an exact interval of a quantile").binom(count, quantiles)
    lowest = binomial.ppf((1 - confidence) / 2).astype(int)  # the order statistic v_(0) is -inf
    highest = binomial.ppf((1 + confidence) / 2).astype(int) + 1  # and v_(N+1) inf
    low, high = sign * padded[lowest], sign * padded[np.minimum(highest, count + 1)]
    middle = np.quantile(ordered, quantiles, method="inverted_cdf")
    with_two_ends = np.flatnonzero((lowest >= 1) & (highest <= count)) + 1
    return BestAgainstBudget(
        tuple(budgets),
        tuple(expected_best(values, n, lower_is_better=lower_is_better) for n in budgets),
        tuple((sign * middle).tolist()),
        tuple(np.minimum(low, high).tolist()),
        tuple(np.maximum(low, high).tolist()),
        int(with_two_ends.max(initial=0)),
    )


def _u_statistics(ordered: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Σ v_(i) C(i−1, n−1)/C(N, n) over i from n on, for each row; infinite where v_(n) is, however small its weight."""
    total = math.comb(ordered.shape[1], n)
    weights = np.array([math.comb(i - 1, n - 1) / total for i in range(n, ordered.shape[1] + 1)])
    worst = ordered[:, n - 1]
    known = np.isfinite(worst)
    return np.where(known, np.where(known[:, None], ordered[:, n - 1 :], 0.0) @ weights, worst)


def fraction_reaching(values: Iterable[float], target: float, *, lower_is_better: bool = False) -> float:
    """The part of all trials that reach a target; a trial that failed (inf, -inf or NaN) is one that did not."""
    array = listed(values)
    if not array.size:
        raise ConfigurationError("values is empty, and a fraction of no trials says nothing")
    (target,) = numbers([target], "target")
    reached = np.isfinite(array) & (array <= target if lower_is_better else array >= target)
    return float(reached.mean())


class Fraction(NamedTuple):
    """How often a target is reached, with an exact interval."""

    target: float
    fraction: float
    interval: Interval


def fraction_curve(
    values: Sequence[float], targets: Iterable[float], *, lower_is_better: bool = False
) -> tuple[Fraction, ...]:
    """`fraction_reaching` for several targets, with intervals: figure 2 of the source.

    Raises:
        MissingExtra: scipy is not installed.
    """
    n = len(values)
    points: list[Fraction] = []
    for target in targets:
        fraction = fraction_reaching(values, target, lower_is_better=lower_is_better)
        points.append(Fraction(float(target), fraction, success_interval(round(fraction * n), n)))
    return tuple(points)


def probability_best(
    values: Mapping[str, Sequence[float]],
    trials: int,
    *,
    lower_is_better: bool = False,
    repeats: int = 10_000,
    seed: int = 0,
) -> dict[str, float]:
    """How often each arm has the best of `trials` trials, drawn again from its own; equal bests share.

    Raises:
        ConfigurationError: an arm has fewer trials than that.
    """
    if not values:
        raise ConfigurationError("values is empty, and the best of no arms says nothing")
    draw = np.random.default_rng(seed)
    sign = -1.0 if lower_is_better else 1.0
    best: list[NDArray[np.float64]] = []
    for name, own in values.items():
        array = numbers(own, name)
        if not 1 <= trials <= len(array):
            raise ConfigurationError(f"{name} has {len(array)} trials, and the best of {trials} was asked for")
        chosen = draw.random((repeats, len(array))).argpartition(trials - 1, axis=1)[:, :trials]
        best.append((sign * array)[chosen].max(axis=1))
    table = np.stack(best)
    winners = table == table.max(axis=0)
    shares = (winners / winners.sum(axis=0)).mean(axis=1)
    return {name: float(share) for name, share in zip(values, shares, strict=True)}


class RidgePoint(NamedTuple):
    """The best trial among those of one weight decay, or of a range of decays."""

    decay: float
    rate: float
    value: float


@dataclass(frozen=True)
class Ridge:
    """The best rate for each weight decay.

    Attributes:
        points: In the order of decay; only those where a trial did not fail.
        slope: Of log rate over log decay by least squares: −1 is an inverse relation, 0 is none. None below 3 points.
    """

    points: tuple[RidgePoint, ...]
    slope: float | None


def best_rate_by_decay(
    rates: Sequence[float],
    decays: Sequence[float],
    values: Sequence[float],
    *,
    bins: int | None = None,
    lower_is_better: bool = False,
) -> Ridge:
    """The best learning rate for each weight decay.

    Args:
        rates: Of each trial, above 0.
        decays: Of each trial, above 0.
        values: Of each trial; a failure is infinite or NaN.
        bins: Ranges of equal ratio that the decays are gathered in; None for one a distinct decay, as on a grid.
        lower_is_better: Whether the best is the least.

    Raises:
        ConfigurationError: a rate or a decay is not above 0, or `bins` is below 1.
    """
    same_length(rates=rates, decays=decays, values=values)
    if bins is not None and whole(bins, "bins") < 1:
        raise ConfigurationError(f"bins is {bins!r}; expected at least 1, or None")
    rate, decay = numbers(rates, "rates"), numbers(decays, "decays")
    if (rate <= 0).any() or (decay <= 0).any():
        raise ConfigurationError("rates and decays are compared by their ratios, so each must be above 0")
    score = listed(values) * (-1.0 if lower_is_better else 1.0)
    score = np.where(np.isfinite(score), score, -np.inf)
    points: list[RidgePoint] = []
    for members in _gathered(decay, bins):
        best = members[np.argmax(score[members])]
        if np.isfinite(score[best]):
            points.append(RidgePoint(float(decay[best]), float(rate[best]), float(values[best])))
    slope = None
    if len(points) > 2:
        slope = float(np.polyfit(np.log([p.decay for p in points]), np.log([p.rate for p in points]), 1)[0])
    return Ridge(tuple(points), slope)


def _gathered(decay: NDArray[np.float64], bins: int | None) -> list[NDArray[np.intp]]:
    """Trials of one decay, or of one range of decays, in the order of decay."""
    if bins is None:
        labels = decay
    else:
        edges = np.geomspace(decay.min(), decay.max(), bins + 1)[1:-1]
        labels = np.searchsorted(edges, decay, side="right")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def stable_width(
    rates: Sequence[float], values: Sequence[float], target: float, *, lower_is_better: bool = False
) -> float:
    """How far above the best learning rate one may go: the largest rate that reaches the target, over the best one.

    1 says that everything above the best rate missed the target: a cliff.

    Raises:
        Refused: no trial reaches the target.
    """
    same_length(rates=rates, values=values)
    rate, value = numbers(rates, "rates"), listed(values)
    if (rate <= 0).any():
        raise ConfigurationError("rates are compared by their ratios, so each must be above 0")
    reached = np.isfinite(value) & (value <= target if lower_is_better else value >= target)
    if not reached.any():
        raise Refused(f"none of {len(value)} trials reaches {target:g}, so there is no stable region to measure")
    score = np.where(np.isfinite(value), -value if lower_is_better else value, -np.inf)
    return float(rate[reached].max() / rate[np.argmax(score)])
