"""Intervals and tests against scipy, published numbers and simulation."""

import itertools
import math
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.errors import ConfigurationError, MissingExtra
from descend.study.analysis import (
    Interval,
    compare_successes,
    difference_interval,
    holm,
    median,
    median_interval,
    success_interval,
)


@pytest.mark.parametrize(("k", "low", "high"), [(35, 0.55, 0.82), (34, 0.53, 0.81), (29, 0.43, 0.72)])
def test_success_intervals_of_the_papers_counts(k, low, high):
    """LARS, Nesterov A and Nesterov B at 50 runs; bounds to the two digits in which they are known."""
    assert success_interval(k, 50) == pytest.approx((low, high), abs=0.006)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.99]))
def test_success_interval_is_scipys_exact_one(counts, confidence):
    k, n = counts
    theirs = scipy.stats.binomtest(k, n).proportion_ci(confidence)
    assert success_interval(k, n, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_fisher_on_the_papers_counts():
    assert compare_successes(35, 50, 29, 50) == pytest.approx(0.30, abs=0.005)
    assert compare_successes(35, 50, 34, 50) == pytest.approx(1.0)


@settings(max_examples=60)
@given(st.data())
def test_fisher_is_scipys(data):
    n1, n2 = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    k1, k2 = data.draw(st.integers(0, n1)), data.draw(st.integers(0, n2))
    theirs = scipy.stats.fisher_exact([[k1, n1 - k1], [k2, n2 - k2]]).pvalue
    assert compare_successes(k1, n1, k2, n2) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("call", [lambda: success_interval(3, 2), lambda: compare_successes(-1, 5, 1, 5)])
def test_impossible_counts_are_refused(call):
    with pytest.raises(ConfigurationError, match="0 ≤ k ≤ n"):
        call()


RANKS = {6: (1, 6), 9: (2, 8), 10: (2, 9), 15: (4, 12), 20: (6, 15), 25: (8, 18), 50: (18, 33)}


@pytest.mark.parametrize(("n", "ranks"), RANKS.items())
def test_ranks_of_the_median_interval(n, ranks):
    assert median_interval(np.random.default_rng(n).permutation(np.arange(1.0, n + 1))) == ranks


@pytest.mark.parametrize("n", range(1, 6))
def test_no_median_interval_below_six(n):
    assert median_interval(range(n)) is None


def test_fewer_values_carry_less_confidence():
    assert median_interval(range(5), confidence=0.9) == (0, 4)
    assert median_interval(range(7), confidence=0.99) is None


def test_median_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(0).exponential(size=(4000, 12))
    held = [median_interval(values).holds(math.log(2)) for values in draws]
    exact = 1 - 2 * scipy.stats.binom.cdf(2, 12, 0.5)
    assert np.mean(held) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))


def test_failed_runs_take_part_in_median_and_interval():
    values = [0.8, 0.9, 0.85, -math.inf, 0.87, 0.88]
    assert median(values) == pytest.approx(0.86)
    assert median_interval(values) == (-math.inf, 0.9)
    assert median([-math.inf, -math.inf, 1.0]) == -math.inf
    assert median([math.inf, math.inf]) == math.inf


def test_nan_is_refused_with_its_place():
    with pytest.raises(ConfigurationError, match=r"values\[1\] is NaN"):
        median([1.0, math.nan])


def test_many_thousand_values_have_an_interval():
    interval = median_interval(range(5001))
    low = scipy.stats.binom.ppf(0.025, 5001, 0.5)
    assert interval.low == pytest.approx(low, abs=1)


def test_paired_differences_leave_out_what_seeds_share():
    draw = np.random.default_rng(1)
    shared = draw.normal(size=25)
    a, b = shared + 0.3, shared + draw.normal(scale=0.05, size=25)
    paired = difference_interval(a, b, paired=True)
    apart = difference_interval(a, b)
    assert paired.sign == 1
    assert apart.holds(0)
    assert paired.high - paired.low < (apart.high - apart.low) / 2


def test_difference_interval_covers_the_true_difference():
    draw = np.random.default_rng(2)
    held = [
        difference_interval(draw.normal(1, 1, 30), draw.normal(0, 2, 30), repeats=400, seed=i).holds(1.0)
        for i in range(300)
    ]
    assert 0.91 <= np.mean(held) <= 0.99


def test_difference_of_failures_is_infinite_or_nothing():
    failed = [-math.inf] * 8
    assert difference_interval([1.0] * 8, failed) == (math.inf, math.inf)
    assert difference_interval(failed, failed) == (0, 0)


def test_unequal_pairs_are_refused():
    with pytest.raises(ConfigurationError, match="a has 2 values and b has 3"):
        difference_interval([1, 2], [1, 2, 3], paired=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_adjusts_as_its_definition(p_values):
    """Adjusted p ≤ α exactly for the hypotheses that the step-down procedure rejects at α."""
    adjusted = holm(p_values)
    for alpha in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        order = sorted(range(len(p_values)), key=lambda i: p_values[i])
        for step, i in enumerate(order):
            if p_values[i] * (len(p_values) - step) > alpha:
                break
            rejected.add(i)
        assert {i for i, p in enumerate(adjusted) if p <= alpha} == rejected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_bonferroni_test(p_values):
    """A hypothesis falls if every intersection with it does, by Bonferroni: the greatest p of these, and at most 1."""
    every = range(len(p_values))
    subsets = [which for size in every for which in itertools.combinations(every, size + 1)]
    closed = [
        max(min(1.0, len(which) * min(p_values[j] for j in which)) for which in subsets if i in which) for i in every
    ]
    assert holm(p_values) == pytest.approx(closed, rel=1e-12)


def test_without_scipy_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtra, match="needs the library scipy: pip install scipy"):
        success_interval(1, 2)
    assert median_interval(range(6)) == Interval(0, 5)  # needs no quantile


def test_a_median_between_the_two_infinities_is_none():
    assert median([-math.inf, -math.inf, 1.0, 2.0]) == -math.inf
    with pytest.raises(ConfigurationError, match="a failure is one of them"):
        median([math.inf, -math.inf])
