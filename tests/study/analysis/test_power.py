"""Sample sizes against the noncentral t of scipy and against simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from descend.errors import ConfigurationError
from descend.study.analysis import (
    detectable_by_searches,
    detectable_difference,
    detectable_in_spreads,
    level_of_a_pair,
    searches_needed,
    seeds_needed,
)


def power(values, delta, alpha=0.05):
    """Of Student's t, by the other library's noncentral t: both tails."""
    freedom, shift = 2 * values - 2, delta * math.sqrt(values / 2)
    critical = scipy.stats.t.ppf(1 - alpha / 2, freedom)
    return scipy.stats.nct.sf(critical, freedom, shift) + scipy.stats.nct.cdf(-critical, freedom, shift)


@pytest.mark.parametrize(("part", "values"), [(4, 3), (1, 17), (0.5, 64), (0.1, 1571)])
def test_the_fewest_seeds_with_that_power(part, values):
    assert seeds_needed(part * 0.7, 0.7) == values
    assert power(values, part) >= 0.8 > power(values - 1, part)


def test_medians_take_half_as_many_again():
    assert seeds_needed(0.35, 0.7, of_medians=True) == pytest.approx(64 * math.pi / 2, abs=1)


def welch(a, b, floor=0.0, others=None):
    """By scipy's test, with the variances that `rank` takes; a row of a and of b is a study."""
    variances = np.stack([a.var(axis=1, ddof=1), b.var(axis=1, ddof=1)])
    every = variances if others is None else np.concatenate([variances, others.T])
    x, y = np.sqrt(np.maximum(variances, np.maximum(0.3 * every.mean(0), floor)))
    count = a.shape[1]
    return scipy.stats.ttest_ind_from_stats(a.mean(1), x, count, b.mean(1), y, count, equal_var=False).pvalue


@pytest.mark.parametrize(("searches", "level"), [(2, 0.05), (3, 0.05), (3, 0.002), (12, 0.05)])
def test_what_searches_find_is_found_by_the_test_of_scipy(searches, level):
    draw = np.random.default_rng(1)
    found = detectable_by_searches(searches, level)
    a, b = draw.normal(found, 1, (8000, searches)), draw.normal(0, 1, (8000, searches))
    assert (welch(a, b) < level).mean() == pytest.approx(0.8, abs=0.018)  # four standard deviations


@pytest.mark.parametrize(("searches", "arms", "floor"), [(2, 2, 0.6), (3, 8, 0.0), (5, 3, 0.4)])
def test_floors_under_the_variances_of_two_arms_are_counted_on(searches, arms, floor):
    draw = np.random.default_rng(3)
    found = detectable_by_searches(searches, 0.01, arms=arms, floor=floor)
    assert found != detectable_by_searches(searches, 0.01)
    a, b = draw.normal(found, 1, (8000, searches)), draw.normal(0, 1, (8000, searches))
    others = draw.normal(0, 1, (8000, arms - 2, searches)).var(axis=2, ddof=1)
    assert (welch(a, b, floor, others) < 0.01).mean() == pytest.approx(0.8, abs=0.018)  # four standard deviations


@pytest.mark.parametrize(("searches", "level"), [(4, 0.05), (5, 0.01), (12, 0.05)])
def test_what_paired_searches_find_is_found_by_the_tests_of_scipy(searches, level):
    draw = np.random.default_rng(2)
    found = detectable_by_searches(searches, level, paired=True)
    a, b = draw.normal(found, 1, (8000, searches)), draw.normal(0, 1, (8000, searches))
    p = np.minimum(welch(a, b), scipy.stats.ttest_rel(a, b, axis=1).pvalue)
    assert (p < 0.6 * level).mean() == pytest.approx(0.8, abs=0.018)  # four standard deviations


def test_pairs_of_few_searches_are_looked_at_by_one_test_alone():
    assert detectable_by_searches(3, 0.05, paired=True) == detectable_by_searches(3, 0.05)
    assert detectable_by_searches(4, 0.05, paired=True) > detectable_by_searches(4, 0.05)
    assert detectable_by_searches(201, 0.05, paired=True) == detectable_in_spreads(201, 0.03)
    assert searches_needed(1.0, 1.0, paired=True) == 19


def test_many_searches_find_what_a_pooled_spread_would():
    assert detectable_by_searches(200, 0.05) == pytest.approx(detectable_in_spreads(200, 0.05), rel=3e-3)
    assert detectable_by_searches(201, 0.05) == detectable_in_spreads(201, 0.05)


@pytest.mark.parametrize("arms", [2, 3, 8])
def test_searches_for_a_study_of_several_arms(arms):
    count, level = searches_needed(2.0, 1.0, arms=arms), level_of_a_pair(arms, 0.05)
    assert detectable_by_searches(count, level, arms=arms) <= 2.0 < detectable_by_searches(count - 1, level, arms=arms)


def test_pairs_of_the_best_arm_are_tested_at_a_larger_level_once_others_are_found():
    """Of 3 arms the best one has two pairs, tested at a third and a half of the level."""
    assert level_of_a_pair(2, 0.05) == 0.05
    assert level_of_a_pair(3, 0.05) == pytest.approx(0.05 / 2.5)


def test_detectable_is_the_inverse():
    found = detectable_difference(0.2, 20)
    assert seeds_needed(found * 1.0001, 0.2) == 20
    assert seeds_needed(found * 0.97, 0.2) > 20


def test_the_power_is_what_it_says():
    difference = detectable_difference(1.0, 63)
    draw = np.random.default_rng(0)
    a, b = draw.normal(difference, 1, (2000, 63)), draw.normal(0, 1, (2000, 63))
    found = scipy.stats.ttest_ind(a, b, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    "call",
    [
        lambda: seeds_needed(0, 1),
        lambda: seeds_needed(1e-200, 1),
        lambda: detectable_difference(math.nan, 5),
        lambda: detectable_difference(1.0, 1),
        lambda: searches_needed(1.0, 1.0, arms=1),
    ],
)
def test_impossible_questions_are_refused(call):
    with pytest.raises(ConfigurationError):
        call()
