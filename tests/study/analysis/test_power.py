"""Sample sizes against the noncentral t of scipy and against simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from descend.errors import ConfigurationError
from descend.study.analysis import detectable_difference, searches_needed, seeds_needed


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


@pytest.mark.parametrize(("arms", "pairs"), [(2, 1), (3, 3), (8, 28)])
def test_searches_for_a_study_of_several_arms(arms, pairs):
    count = searches_needed(2.0, 1.0, arms=arms)
    assert power(count, 2.0, 0.05 / pairs) >= 0.8 > power(count - 1, 2.0, 0.05 / pairs)


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
