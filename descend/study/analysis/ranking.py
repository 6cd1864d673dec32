"""Whether one arm of a study is better than another, and "cannot rank" where the evidence does not say.

Two things make a difference that is none. Seeds: the same settings, another start. Searches: the same arm, searched
anew, ends at other settings, and repeating these with many seeds only makes the accident look certain. So a claim takes

    between searches   Student's t over one number a search (the median of its re-runs), variances of both arms pooled
    between seeds      disjoint exact intervals of the medians in every pair of searches, where there are seeds enough

and Holm over the pairs of arms. The level is 0.01: of a hundred comparisons of a thing with itself, one may rank.
Different budgets, one search only, or runs that failed are reasons not to rank, and are said.

Source: Student 1908; Holm 1979; the difference between trial and study variance is that of the Deep Learning Tuning
Playbook.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from descend.errors import ConfigurationError, Refused
from descend.study.analysis.intervals import Interval, holm, median, median_interval
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LEVEL", "Pair", "Ranking", "Tuning", "check_budgets", "compare_searches", "rank", "train_beside_validation"]

LEVEL = 0.01


@dataclass(frozen=True)
class Tuning:
    """What one arm was given.

    Attributes:
        trials: Trials of each search.
        steps: Updates of a trial.
        searches: Independent searches.
        dimensions: Numbers that were searched over.
    """

    trials: int
    steps: int
    searches: int
    dimensions: int


@dataclass(frozen=True)
class Pair:
    """Two arms side by side.

    Attributes:
        better: Name of the one that is ahead.
        worse: Name of the other.
        difference: Of the means over searches of the medians over seeds, in favour of `better`; NaN if an arm failed.
        interval: Of that difference, from the variance between searches; None with one search or a failure.
        p: Of Student's t, after Holm; 1 where it cannot be computed.
        ranked: Whether `better` may be called better.
        reason: Why, or why not, a sentence.
    """

    better: str
    worse: str
    difference: float
    interval: Interval | None
    p: float
    ranked: bool
    reason: str


@dataclass(frozen=True)
class Ranking:
    """All pairs of arms.

    Attributes:
        ranked: Whether any pair is.
        pairs: In the order of the arms.
        order: Arms from the best to the worst by the mean of their medians, which is no ranking by itself.
        detectable: The difference between two arms that this many searches would have found with probability 0.8;
            None with one search.
        reasons: Why nothing may be ranked at all; empty if the pairs decide.
    """

    ranked: bool
    pairs: tuple[Pair, ...]
    order: tuple[str, ...]
    detectable: float | None
    reasons: tuple[str, ...]


def check_budgets(tunings: Mapping[str, Tuning]) -> None:
    """Refuse a comparison of arms that were not given the same.

    Raises:
        Refused: trials, steps or searches differ, with every difference.
    """
    reasons: list[str] = []
    for field, what in (("trials", "trials a search"), ("steps", "updates a trial"), ("searches", "searches")):
        given = {name: getattr(tuning, field) for name, tuning in tunings.items()}
        if len(set(given.values())) > 1:
            shown = ", ".join(f"{name} {count:,}" for name, count in given.items())
            reasons.append(f"the arms had different budgets ({what}: {shown}); more tuning finds better values")
    if reasons:
        raise Refused(reasons)


def rank(
    reruns: Mapping[str, Sequence[Sequence[float]]],
    *,
    lower_is_better: bool = False,
    level: float = LEVEL,
    tunings: Mapping[str, Tuning] | None = None,
) -> Ranking:
    """Say which arms differ.

    Args:
        reruns: For each arm and each of its searches the values of its winner with fresh seeds; a failed run is -inf,
            or inf where lower is better.
        lower_is_better: Whether the best is the least.
        level: Probability of calling anything better when all arms are the same.
        tunings: What each arm was given; arms that were given different things are not ranked.

    Raises:
        MissingExtra: scipy is not installed.
    """
    check_fraction(level, "level")
    if len(reruns) < 2:
        raise ConfigurationError("a ranking takes at least two arms")
    sign = -1.0 if lower_is_better else 1.0
    medians = {name: [sign * median(values) for values in searches] for name, searches in reruns.items()}
    order = tuple(sorted(medians, key=lambda name: -float(np.mean(medians[name]))))
    reasons = _reasons(medians, tunings)
    pairs = _pairs(reruns, medians, sign, level, reasons)
    return Ranking(any(pair.ranked for pair in pairs), pairs, order, _detectable(medians), tuple(reasons))


def _reasons(medians: Mapping[str, Sequence[float]], tunings: Mapping[str, Tuning] | None) -> list[str]:
    """Why no pair may be ranked."""
    reasons: list[str] = []
    if tunings:
        try:
            check_budgets(tunings)
        except Refused as refused:
            reasons.extend(refused.problems)
    if min(len(searches) for searches in medians.values()) < 2:
        reasons.append("one search an arm does not show how far a second one would have ended: make at least two")
    return reasons


def _pairs(
    reruns: Mapping[str, Sequence[Sequence[float]]],
    medians: Mapping[str, Sequence[float]],
    sign: float,
    level: float,
    reasons: Sequence[str],
) -> tuple[Pair, ...]:
    names = list(itertools.combinations(reruns, 2))
    ahead = [(a, b) if np.mean(medians[a]) >= np.mean(medians[b]) else (b, a) for a, b in names]
    tests = [compare_searches(medians[a], medians[b], level / len(names)) for a, b in ahead]
    adjusted = holm([test[0] for test in tests])
    return tuple(
        _pair(better, worse, reruns, medians, sign, test[1], p, level, reasons)
        for (better, worse), test, p in zip(ahead, tests, adjusted, strict=True)
    )


def compare_searches(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, Interval | None]:
    """Student's t for one number a search.

    Args:
        a: One number for each search of an arm.
        b: Of another.
        level: One minus the confidence of the interval.

    Returns:
        The two-sided p-value and the interval of mean(a) − mean(b). p is 1 and there is no interval where an arm has a
        single search or a search failed; equal numbers have p = 1.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return 1.0, None
    freedom = len(x) + len(y) - 2
    variance = (((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()) / freedom
    error = math.sqrt(variance * (1 / len(x) + 1 / len(y)))
    difference = float(x.mean() - y.mean())
    functions = scipy("special", "Student's t")
    half = float(functions.stdtrit(freedom, 1 - level / 2)) * error
    if error == 0:
        return (1.0 if difference == 0 else 0.0), Interval(difference, difference)
    p = 2 * float(functions.stdtr(freedom, -abs(difference) / error))
    return p, Interval(difference - half, difference + half)


def _pair(
    better: str,
    worse: str,
    reruns: Mapping[str, Sequence[Sequence[float]]],
    medians: Mapping[str, Sequence[float]],
    sign: float,
    interval: Interval | None,
    p: float,
    level: float,
    reasons: Sequence[str],
) -> Pair:
    with np.errstate(invalid="ignore"):
        difference = float(np.mean(medians[better]) - np.mean(medians[worse]))
    reason = _obstacle(reruns[better], reruns[worse], medians[better], medians[worse], sign, p, level)
    if reasons:
        reason = "; ".join(reasons)
    ranked = reason is None
    if reason is None:
        reason = f"{len(medians[better])} searches each, p = {p:.2g} after Holm, re-runs disjoint in every pair"
    return Pair(better, worse, difference, interval, p, ranked, reason)


def _obstacle(
    better: Sequence[Sequence[float]],
    worse: Sequence[Sequence[float]],
    medians_better: Sequence[float],
    medians_worse: Sequence[float],
    sign: float,
    p: float,
    level: float,
) -> str | None:
    """Why the one that is ahead may not be called better."""
    failed = sum(not math.isfinite(value) for value in (*medians_better, *medians_worse))
    if failed:
        return f"in {failed} searches half of the re-runs failed, so there is no median to compare"
    if p > level:
        return f"a difference like this comes from repeating the search (p = {p:.2g}, and {level:g} is asked for)"
    for one, other in itertools.product(better, worse):
        a, b = _interval(one, sign), _interval(other, sign)
        if a is None or b is None:
            return "below 6 seeds a median has no 95 % interval: re-run each winner with at least 6"
        if a.low <= b.high:
            return "the intervals of re-runs overlap in a pair of searches"
    return None


def _interval(values: Sequence[float], sign: float) -> Interval | None:
    return median_interval([sign * value for value in values])


def _detectable(medians: Mapping[str, Sequence[float]], power: float = 0.8) -> float | None:
    """From the spread between the searches of an arm, pooled over arms, by the power of Student's t."""
    finite = [np.asarray(searches) for searches in medians.values() if np.isfinite(searches).all()]
    freedom = sum(len(searches) - 1 for searches in finite)
    if freedom < 1:
        return None
    variance = sum(float(((searches - searches.mean()) ** 2).sum()) for searches in finite) / freedom
    searches = min(map(len, finite))
    functions = scipy("special", "the power of Student's t")
    critical = functions.stdtrit(2 * searches - 2, 1 - LEVEL / 2)
    return float(functions.nctdtrinc(2 * searches - 2, 1 - power, critical)) * math.sqrt(2 * variance / searches)


Verdict = Literal[
    "faster optimizer",
    "better optimizer that needs regularization",
    "regularizer",
    "overfits less and trains less",
    "worse optimizer",
    "no difference",
]


def train_beside_validation(train: Interval, validation: Interval) -> Verdict:
    """What a difference is due to, from the differences in training and validation score between two arms.

    Args:
        train: Interval of the difference in the score on training samples, positive where the first arm is better.
        validation: Likewise on validation samples, scored the same way.

    Returns:
        train better, validation better or equal: a faster optimizer, or a better one that needs regularization; only
        validation better: a regularizer, to be compared with label smoothing and weight decay before it is called an
        optimizer; and so on. A sign counts where the interval leaves out 0.
    """
    table: dict[tuple[int, int], Verdict] = {
        (1, 1): "faster optimizer",
        (1, 0): "better optimizer that needs regularization",
        (1, -1): "better optimizer that needs regularization",
        (0, 1): "regularizer",
        (-1, 1): "regularizer",
        (0, 0): "no difference",
        (-1, 0): "overfits less and trains less",
        (0, -1): "worse optimizer",
        (-1, -1): "worse optimizer",
    }
    return table[train.sign, validation.sign]
