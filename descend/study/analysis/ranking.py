"""Whether one arm of a study is better than another, and "cannot rank" where the evidence does not say.

Two things make a difference that is none. Seeds: the same settings, another start. Searches: the same arm, tuned again,
ends at other settings, and repeating these with many seeds only makes the accident look certain. So the unit of the
test is the search, with one number, the median of its re-runs; the noise of the seeds that is left in a median is part
of the spread between searches. With s searches an arm, medians x and y, and m pairs of arms:

    t = (mean x - mean y) / sqrt((U + V)/s)                 Welch's t, Holm over the m pairs; its degrees of freedom are
                                                            Satterthwaite's (s - 1)(U + V)^2 / (U^2 + V^2)
    U, V                                                    variance between searches of each arm, at least the floors
    P(better > worse) = 1 - p/2                             posterior of the mean difference under a flat prior

Two or three searches may end close together by chance, and then a small difference would look certain. What else is
known of their spread sets three floors under U and V:

    g^2/12                  g is the step in which scores are counted, where they are: ties of rounded scores have no
                            spread, and are no certainty
    3/10 of P               P is the variance between searches pooled over all arms of the study
    pi/8 of s^2/n           the n re-runs of a search vary by s^2 about their own mean: a median of normal ones has a
                            variance of pi/2 s^2/n from its seeds alone, one of heavy tails down to a fifth of that

They are weak on purpose: arms may scatter very unequally. A floor also gives the test more degrees of freedom, so that
it errs less and finds more; docs/ranking.md has a table of what other choices do.

Search number i of every arm may have the same seeds and, in equal spaces, the same points. Then differences within a
search vary less than the arms do if the luck of one arm is that of the other, and more where it is the contrary. From 4
searches on they are looked at too:

    t = mean(x - y) / sqrt(D/s)                             Student's t in pairs, s - 1 degrees of freedom; D is the
                                                            variance of the differences, at least g^2/6
    p = min(p of Welch, p in pairs) / 0.6                   either of both tests may find a difference

That costs some power where searches are not alike, and finds more from a correlation of about 0.3 on. That 0.6 and not
1/2 keeps the level is no theorem: both tests have one numerator, and `benchmarks/ranking.py` counts.

Not to be ranked is not to be equal. Two arms are equivalent within a margin d where both hypotheses that they differ by
more are refused (two one-sided tests at the level, Holm over the m pairs):

    p = max(P(T > (d + x - y)/error), P(T > (d - x + y)/error))      x, y the means, error and T as above

Where a search failed as a whole, the medians have no mean, and their ranks are compared (Mann and Whitney, by all
permutations up to 8 searches, else by 20,000 drawn ones). An arm of which every re-run failed in every search is worse
than one of which none did, unless some arm had searches of both kinds, so that a search may fail by chance.

Arms of unequal spread are common, since one optimizer is harder to tune than another. Student's t with a pooled
variance would call one of two equal arms better in 9 % of studies of two searches where one scatters four times as
wide; Welch's holds its level, and finds less with two or three searches. `benchmarks/ranking.py` makes the tables of
what this rule finds and how often it errs.

Sources: Welch 1947; Satterthwaite 1946; Schuirmann 1987; Holm 1979; Mann and Whitney 1947; variance of rounding,
Sheppard 1898; the difference between trial and study variance is that of the Deep Learning Tuning Playbook.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from descend.errors import ConfigurationError, Refused
from descend.study.analysis.intervals import Interval, compare_successes, holm, median
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.power import (
    PAIRED_FROM,
    PAIRED_SHARE,
    SHARE_OF_ARMS,
    detectable_by_searches,
    level_of_a_pair,
)
from descend.study.analysis.values import check_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "LEVEL",
    "Pair",
    "Ranking",
    "Tuning",
    "check_budgets",
    "compare_ranks",
    "compare_searches",
    "compare_within",
    "rank",
    "resolution",
    "train_beside_validation",
]

LEVEL = 0.05
SHARE_OF_SEEDS = 1 / 4  # of the variance that seeds alone give a median of normal values, as a floor
_RELATIVE_ROUNDING = 1e-9  # of two scores that are the same number to the digits that count


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
        difference: Of the means over searches of the medians over seeds, in favour of `better`; NaN if a search failed.
        interval: Of that difference, at a confidence of 1 - level/pairs, so that the intervals of all pairs hold
            together with probability 1 - level; None with one search or a failed one.
        p: Two-sided, after Holm; 1 where it cannot be computed.
        ranked: Whether `better` may be called better.
        reason: Why, or why not, a sentence.
        probability: That `better` is the better one, given these searches and nothing else: 1 - p/2 before Holm.
        p_equivalent: That they differ by the margin or more, of two one-sided tests after Holm; None without a margin,
            1 where it cannot be computed.
        equivalent: Whether they may be called equivalent within the margin, which does not depend on `ranked`: a
            difference may be certain and too small to matter.
    """

    better: str
    worse: str
    difference: float
    interval: Interval | None
    p: float
    ranked: bool
    reason: str
    probability: float
    p_equivalent: float | None = None
    equivalent: bool = False


@dataclass(frozen=True)
class Ranking:
    """All pairs of arms.

    Attributes:
        ranked: Whether any pair is.
        pairs: In the order of the arms.
        order: Arms from the best to the worst by the mean of their medians, which is not a ranking by itself.
        detectable: The difference between two arms that a repetition of the study would find with probability 0.8, from
            the spread between searches pooled over all arms; None with one search. As an estimate from few searches
            it is uncertain itself: see `detectable_interval`. Of paired searches it is found at least so often.
        reasons: Why nothing may be ranked at all; empty if the pairs decide.
        detectable_interval: Of `detectable`, 90 %, from the uncertainty of that spread.
        margin: Within which pairs were tested for equivalence; None where they were not.
    """

    ranked: bool
    pairs: tuple[Pair, ...]
    order: tuple[str, ...]
    detectable: float | None
    reasons: tuple[str, ...]
    detectable_interval: Interval | None = None
    margin: float | None = None


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
    margin: float | None = None,
    paired: bool = False,
) -> Ranking:
    """Say which arms differ.

    Args:
        reruns: For each arm and each of its searches the values of its winner with fresh seeds; a failed run is -inf,
            or inf where lower is better.
        lower_is_better: Whether the best is the least.
        level: Probability of calling anything better when all arms are the same.
        tunings: What each arm was given; arms that were given different things are not ranked.
        margin: The largest difference that does not matter, in units of the values and above 0; with it pairs are also
            tested for equivalence.
        paired: Whether search number i of every arm had the same seeds, and arms of one space the same points; every
            arm must have as many searches.

    Raises:
        ConfigurationError: there are fewer than two arms, the level is not between 0 and 1, the margin not above 0, or
            searches that are said to be paired are not as many in every arm.
        MissingExtra: scipy is not installed.
    """
    check_fraction(level, "level")
    if len(reruns) < 2:
        raise ConfigurationError("a ranking takes at least two arms")
    if margin is not None and not 0 < margin < math.inf:
        raise ConfigurationError(f"the margin of equivalence must be a number above 0, got {margin!r}")
    counts = {name: len(searches) for name, searches in reruns.items()}
    if paired and len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigurationError(f"paired=True: every arm must have as many searches, got {shown}")
    sign = -1.0 if lower_is_better else 1.0
    medians = {name: [sign * median(values) for values in searches] for name, searches in reruns.items()}
    order = tuple(sorted(medians, key=lambda name: -_mean(medians[name])))
    reasons = _reasons(medians, tunings)
    step = resolution([value for searches in reruns.values() for values in searches for value in values])
    by_seeds = {name: SHARE_OF_SEEDS * _variance_by_seeds(searches) for name, searches in reruns.items()}
    pooled = SHARE_OF_ARMS * _pooled([*medians.values()], step)
    floors = {name: max(step**2 / 12, pooled, least) for name, least in by_seeds.items()}
    pairs = _pairs(reruns, medians, floors, step, level, reasons, paired)
    if margin is not None:
        pairs = _with_equivalence(pairs, medians, floors, margin, step, level, reasons, paired)
    detectable, interval = _detectable(medians, float(np.mean([*by_seeds.values()])), step, level, paired)
    return Ranking(any(pair.ranked for pair in pairs), pairs, order, detectable, tuple(reasons), interval, margin)


def resolution(values: Sequence[float]) -> float:
    """The step in which scores are counted; 0 where no two of them are equal.

    Scores on a small split, or steps to a target at few evaluations, are multiples of a step, and equal ones are
    common. The step is taken for the least distance between two that differ.
    """
    finite = np.sort(np.asarray([value for value in values if math.isfinite(value)], dtype=np.float64))
    gaps = np.diff(finite)
    rounding = _RELATIVE_ROUNDING * np.maximum(np.abs(finite[1:]), np.abs(finite[:-1]))
    apart = gaps[gaps > rounding]
    return float(apart.min()) if 0 < len(apart) < len(gaps) else 0.0


def _variance_by_seeds(searches: Sequence[Sequence[float]]) -> float:
    """What the seeds of its re-runs add to the variance of a median, as of normal values; 0 where it does not show."""
    finite = [[value for value in values if math.isfinite(value)] for values in searches]
    with np.errstate(over="ignore"):
        some = [float(np.var(values, ddof=1)) / len(values) for values in finite if len(values) > 1]
    found = math.pi / 2 * float(np.mean(some)) if some else 0.0
    return found if math.isfinite(found) else 0.0


def _pooled(medians: Sequence[Sequence[float]], step: float) -> float:
    """The variance between searches over all arms with two of them and none that failed; at least g²/12."""
    arms = [np.asarray(searches) for searches in medians if len(searches) > 1 and np.isfinite(searches).all()]
    freedom = sum(len(searches) - 1 for searches in arms)
    with np.errstate(over="ignore"):
        squares = sum(float(((searches - searches.mean()) ** 2).sum()) for searches in arms)
    return max(squares / freedom, step**2 / 12) if freedom else 0.0


def _mean(values: Sequence[float]) -> float:
    """The mean; -inf where any value is, which is what a failed search counts."""
    return -math.inf if -math.inf in values else float(np.mean(values))


def _reasons(medians: Mapping[str, Sequence[float]], tunings: Mapping[str, Tuning] | None) -> list[str]:
    """Why no pair may be ranked."""
    reasons: list[str] = []
    if tunings:
        try:
            check_budgets(tunings)
        except Refused as refused:
            reasons.extend(refused.problems)
    if min(len(searches) for searches in medians.values()) < 2:
        reasons.append(
            "one search an arm does not show how far a second one would have ended: make at least two, and better three"
        )
    return reasons


def _pairs(
    reruns: Mapping[str, Sequence[Sequence[float]]],
    medians: Mapping[str, Sequence[float]],
    floors: Mapping[str, float],
    step: float,
    level: float,
    reasons: Sequence[str],
    paired: bool,
) -> tuple[Pair, ...]:
    names = list(itertools.combinations(reruns, 2))
    ahead = [(a, b) if _mean(medians[a]) >= _mean(medians[b]) else (b, a) for a, b in names]
    by_chance = any(0 < np.isinf(searches).sum() < len(searches) for searches in medians.values())
    tests = [
        _test(
            (reruns[a], reruns[b]),
            (medians[a], medians[b]),
            (floors[a], floors[b]),
            level / len(names),
            step,
            paired,
            by_chance,
        )
        for a, b in ahead
    ]
    adjusted = holm([test.p for test in tests])
    return tuple(
        _pair(better, worse, medians, test, p, level, reasons)
        for (better, worse), test, p in zip(ahead, tests, adjusted, strict=True)
    )


@dataclass(frozen=True)
class _Test:
    """One pair: p before Holm, its interval, and by what it was tested."""

    p: float
    interval: Interval | None
    method: str


def _test(
    reruns: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]],
    medians: tuple[Sequence[float], Sequence[float]],
    floors: tuple[float, float],
    level: float,
    step: float,
    paired: bool,
    by_chance: bool,
) -> _Test:
    """Compare two arms, the one that is ahead first; whether searches of this study fail by chance."""
    if min(map(len, medians)) < 2:
        return _Test(1.0, None, "")
    if math.isfinite(sum(medians[0]) + sum(medians[1])):
        found = compare_searches(*medians, level, step, paired=paired, floors=floors)
        both = paired and len(medians[0]) >= PAIRED_FROM
        return _Test(*found, "by Welch's t and t in pairs over searches" if both else "by Welch's t over searches")
    good, bad = ([math.isfinite(value) for values in arm for value in values] for arm in reruns)
    if all(good) and not any(bad) and not by_chance:
        return _Test(compare_successes(len(good), len(good), 0, len(bad)), None, _ALL_FAILED)
    return _Test(compare_ranks(*medians), None, "by their ranks, since re-runs failed")


_ALL_FAILED = "every re-run of the worse one failed"


def compare_searches(
    a: Sequence[float],
    b: Sequence[float],
    level: float,
    step: float = 0.0,
    *,
    paired: bool = False,
    floors: tuple[float, float] | None = None,
) -> tuple[float, Interval | None]:
    """Welch's t for one number a search; of 4 or more that are paired, the more certain of this and of t in pairs.

    Args:
        a: One number for each search of an arm.
        b: Of another.
        level: One minus the confidence of the interval.
        step: Resolution of the numbers: their variance is at least step²/12.
        paired: Whether number i of both belongs to the same seeds.
        floors: The least variance between searches of each arm; from these two arms and the step alone where None.

    Returns:
        The two-sided p-value and the interval of mean(a) − mean(b). p is 1 and there is no interval where an arm has a
        single search or a search failed; equal numbers have p = 1.
    """
    found = _difference(a, b, step, paired, floors)
    if found is None:
        return 1.0, None
    difference, spreads = found
    functions = scipy("special", "Student's t")
    share = PAIRED_SHARE if len(spreads) > 1 else 1.0
    half = min(float(functions.stdtrit(freedom, 1 - share * level / 2)) * error for error, freedom in spreads)
    if difference == 0:
        return 1.0, Interval(-half, half)
    p = min(
        2 * float(functions.stdtr(freedom, -abs(difference) / error)) if error else 0.0 for error, freedom in spreads
    )
    return min(p / share, 1.0), Interval(difference - half, difference + half)


def compare_within(
    a: Sequence[float],
    b: Sequence[float],
    margin: float,
    step: float = 0.0,
    *,
    paired: bool = False,
    floors: tuple[float, float] | None = None,
) -> float:
    """The p-value of the hypothesis that two arms differ by `margin` or more: Schuirmann's two one-sided t tests.

    Args:
        a: One number for each search of an arm.
        b: Of another.
        margin: Above 0.
        step: As in `compare_searches`.
        paired: Likewise.
        floors: Likewise.

    Returns:
        The larger of both; 1 where an arm has a single search or a search failed.
    """
    found = _difference(a, b, step, paired, floors)
    if found is None:
        return 1.0
    difference, spreads = found
    outside = abs(difference) - margin
    functions = scipy("special", "Student's t")
    p = min(
        float(functions.stdtr(freedom, outside / error)) if error else float(outside >= 0) for error, freedom in spreads
    )
    return min(p / (PAIRED_SHARE if len(spreads) > 1 else 1.0), 1.0)


def _difference(
    a: Sequence[float], b: Sequence[float], step: float, paired: bool, floors: tuple[float, float] | None
) -> tuple[float, list[tuple[float, float]]] | None:
    """mean(a) − mean(b), and the standard error and degrees of freedom of each test; None without these.

    Welch's have those of Satterthwaite.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    paired = paired and len(x) == len(y) >= PAIRED_FROM
    if floors is None:
        least = max(step**2 / 12, SHARE_OF_ARMS * _pooled((a, b), step))
        floors = least, least
    with np.errstate(over="ignore"):
        u, v = (max(float(one.var(ddof=1)), least) / len(one) for one, least in zip((x, y), floors, strict=True))
        w = max(float((x - y).var(ddof=1)), step**2 / 6) / len(x) if paired else 0.0
    if not math.isfinite(u + v + w):
        return None
    share = u / (u + v) if u + v else 0.5
    freedom = 1 / (share**2 / (len(x) - 1) + (1 - share) ** 2 / (len(y) - 1))
    spreads = [(math.sqrt(u + v), freedom), *([(math.sqrt(w), len(x) - 1.0)] if paired else [])]
    return float(x.mean() - y.mean()), spreads


def compare_ranks(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of Mann and Whitney's test, by all permutations where those are few; infinities count."""
    ranks = scipy("stats", "the test of Mann and Whitney").rankdata([*a, *b])  # the mean of equal ones
    observed = float(ranks[: len(a)].sum())
    parts, extra = _parts(len(a), len(b))
    sums = ranks[parts].sum(1)
    counts = ((sums <= observed + 1e-9).sum(), (sums >= observed - 1e-9).sum())
    return min(1.0, 2 * (int(min(counts)) + extra) / (len(sums) + extra))


_PERMUTATIONS = 20_000


@functools.lru_cache(maxsize=8)
def _parts(first: int, second: int) -> tuple[NDArray[np.intp], int]:
    """Ways to choose `first` of `first + second` numbers, a row each: all and 0, or drawn ones and 1.

    The number is how often what was seen counts beside what was drawn.
    """
    if math.comb(first + second, first) <= _PERMUTATIONS:
        return np.array([*itertools.combinations(range(first + second), first)], dtype=np.intp), 0
    draw = np.random.default_rng(0)
    return draw.random((_PERMUTATIONS, first + second), dtype=np.float32).argsort(1)[:, :first], 1


def _pair(
    better: str,
    worse: str,
    medians: Mapping[str, Sequence[float]],
    test: _Test,
    p: float,
    level: float,
    reasons: Sequence[str],
) -> Pair:
    count = len(medians[better])
    with np.errstate(invalid="ignore"):
        difference = float(np.mean(medians[better]) - np.mean(medians[worse]))
    ranked = p <= level and not reasons
    if reasons:
        reason = "; ".join(reasons)
    elif ranked:
        reason = f"{count} searches each, p = {p:.2g} after Holm, {test.method}"
    else:
        reason = f"repeating the searches gives differences like this one (p = {p:.2g} after Holm, {test.method})"
    finite = difference if math.isfinite(difference) else math.nan
    return Pair(better, worse, finite, test.interval, p, ranked, reason, 1 - test.p / 2)


def _with_equivalence(
    pairs: Sequence[Pair],
    medians: Mapping[str, Sequence[float]],
    floors: Mapping[str, float],
    margin: float,
    step: float,
    level: float,
    reasons: Sequence[str],
    paired: bool,
) -> tuple[Pair, ...]:
    adjusted = holm(
        [
            compare_within(
                medians[pair.better],
                medians[pair.worse],
                margin,
                step,
                paired=paired,
                floors=(floors[pair.better], floors[pair.worse]),
            )
            for pair in pairs
        ]
    )
    return tuple(
        replace(pair, p_equivalent=p, equivalent=p <= level and not reasons)
        for pair, p in zip(pairs, adjusted, strict=True)
    )


def _detectable(
    medians: Mapping[str, Sequence[float]], by_seeds: float, step: float, level: float, paired: bool
) -> tuple[float | None, Interval | None]:
    """From the spread between the searches of an arm, pooled over arms, with an interval for this spread.

    Of paired searches as if they were not alike, since how alike they are shows in few of them no better than by
    chance; where they are, such a difference is found more often. `by_seeds` is the mean floor that re-runs set.
    """
    finite = [searches for searches in medians.values() if np.isfinite(searches).all()]
    freedom = sum(len(searches) - 1 for searches in finite)
    searches = min(map(len, medians.values()))
    if freedom < 1 or searches < 2:
        return None, None
    variance = _pooled(finite, step)
    functions = scipy("special", "the quantiles of chi-square")
    arms = len(medians)
    factor = detectable_by_searches(
        searches,
        level_of_a_pair(arms, level),
        paired=paired,
        arms=arms,
        floor=round(20 * min(1.0, by_seeds / variance)) / 20 if variance else 0.0,
    )
    low, high = (
        factor * math.sqrt(variance * freedom / float(functions.chdtri(freedom, tail))) for tail in (0.05, 0.95)
    )
    return factor * math.sqrt(variance), Interval(low, high)


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
