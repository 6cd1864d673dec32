"""Statistics of a search against enumeration, simulation and planted relations."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import (
    best_against_budget,
    best_rate_by_decay,
    expected_best,
    fraction_curve,
    fraction_reaching,
    probability_best,
    stable_width,
)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
def test_expected_best_is_the_mean_over_all_subsets(values, data):
    n = data.draw(st.integers(1, len(values)))
    best = [max(chosen) for chosen in itertools.combinations(values, n)]
    assert expected_best(values, n) == pytest.approx(np.mean(best), abs=1e-12)
    least = [min(chosen) for chosen in itertools.combinations(values, n)]
    assert expected_best(values, n, lower_is_better=True) == pytest.approx(np.mean(least), abs=1e-12)


def test_expected_best_is_unbiased():
    """Best of 10 and of 40 of standard normals, from 50: 1.54 and 2.16 by long simulation."""
    draws = np.random.default_rng(0).normal(size=(2000, 50))
    for n, truth in ((10, 1.5388), (40, 2.1608)):
        assert np.mean([expected_best(values, n) for values in draws]) == pytest.approx(truth, abs=0.04)


def test_a_failure_counts_until_it_cannot_be_the_best():
    values = [0.5, -math.inf, 0.7]
    assert expected_best(values, 1) == -math.inf
    assert expected_best(values, 2) == pytest.approx((0.5 + 0.7 + 0.7) / 3)
    assert expected_best([3.0, math.inf], 2, lower_is_better=True) == 3.0


@pytest.mark.parametrize("n", [0, 4])
def test_more_than_there_are_cannot_be_estimated(n):
    with pytest.raises(ConfigurationError, match="from 3 trials"):
        expected_best([1, 2, 3], n)


@pytest.mark.parametrize("kind", ["random", "standard_normal", "exponential", "bounded"])
def test_the_band_holds_the_median_of_the_best(kind):
    """At every budget that is said to be reliable; the truth is the quantile 0.5^(1/n) of the distribution."""
    distribution = {
        "random": scipy.stats.uniform(),
        "standard_normal": scipy.stats.norm(),
        "exponential": scipy.stats.expon(),
        "bounded": scipy.stats.beta(0.5, 0.5),
    }[kind]
    draw = np.random.default_rng(3)
    curves = [best_against_budget(distribution.rvs(24, random_state=draw)) for _ in range(200)]
    assert {curve.reliable_to for curve in curves} == {4}
    for n in (1, 2, 4):
        truth = distribution.ppf(0.5 ** (1 / n))
        assert sum(curve.low[n - 1] <= truth <= curve.high[n - 1] for curve in curves) >= 180


def test_the_best_of_more_than_a_fifth_of_the_trials_has_no_upper_end():
    curve = best_against_budget(np.arange(32.0))
    assert list(curve.budgets) == list(range(1, 33))
    assert curve.reliable_to == 6
    assert math.isfinite(curve.high[5])
    assert curve.high[6] == math.inf
    assert np.all(np.diff(curve.expected) >= 0)
    assert np.all(np.diff(curve.median) >= 0)
    assert all(low <= middle <= high for low, middle, high in zip(curve.low, curve.median, curve.high, strict=True))


def test_the_band_of_a_loss_lies_around_it():
    losses = np.random.default_rng(5).random(24)
    curve, mirrored = best_against_budget(losses, lower_is_better=True), best_against_budget(-losses)
    assert all(low <= middle <= high for low, middle, high in zip(curve.low, curve.median, curve.high, strict=True))
    assert curve.low == tuple(-x for x in mirrored.high)
    assert curve.expected[-1] == losses.min()


def test_few_trials_have_no_reliable_budget():
    assert best_against_budget([3.0, 1.0, 2.0, 5.0]).reliable_to == 0


def test_fractions_count_failures_as_misses():
    values = [0.9, 0.8, math.nan, -math.inf]
    assert fraction_reaching(values, 0.8) == 0.5
    assert fraction_reaching([1.0, 3.0, math.inf], 1.0, lower_is_better=True) == pytest.approx(1 / 3)
    curve = fraction_curve(values, [0.7, 0.85, 0.95])
    assert [point.fraction for point in curve] == [0.5, 0.25, 0.0]
    assert curve[0].interval == pytest.approx((0.0676, 0.9324), abs=1e-4)  # Clopper-Pearson for 2 of 4


def test_probability_of_being_best_is_that_of_enumeration():
    a, b = [1.0, 4.0, 6.0], [2.0, 3.0, 5.0]
    pairs = list(itertools.product(itertools.combinations(a, 2), itertools.combinations(b, 2)))
    exact = np.mean([max(x) > max(y) for x, y in pairs])
    found = probability_best({"a": a, "b": b}, 2, repeats=20_000)
    assert found["a"] == pytest.approx(exact, abs=0.02)
    assert sum(found.values()) == pytest.approx(1)


def test_equal_arms_share():
    assert probability_best({"a": [1.0, 1.0], "b": [1.0, 1.0]}, 1) == {"a": 0.5, "b": 0.5}


def test_an_inverse_relation_of_rate_and_decay_is_found_on_a_grid():
    rates, decays = (grid.ravel() for grid in np.meshgrid(np.geomspace(0.01, 1, 10), np.geomspace(1e-4, 1e-2, 10)))
    inverse = best_rate_by_decay(rates, decays, -np.abs(np.log(rates * decays / 1e-4)))
    independent = best_rate_by_decay(rates, decays, np.abs(np.log(rates / 0.1)), lower_is_better=True)
    assert inverse.slope == pytest.approx(-1, abs=0.1)
    assert independent.slope == pytest.approx(0, abs=1e-9)
    assert len(inverse.points) == 10


def test_scattered_decays_are_gathered_and_failures_left_out():
    ridge = best_rate_by_decay([1, 2, 3, 4], [1e-4, 1.1e-4, 1e-2, 0.9e-2], [0.5, math.nan, -math.inf, 0.9], bins=2)
    assert [(point.rate, point.value) for point in ridge.points] == [(1, 0.5), (4, 0.9)]
    assert ridge.slope is None


def test_stable_width_sees_a_cliff_and_a_plateau():
    rates = [0.01, 0.1, 0.2, 0.4]
    assert stable_width(rates, [0.5, 0.9, 0.1, math.nan], 0.8) == 1
    assert stable_width(rates, [0.5, 0.9, 0.85, 0.84], 0.8) == pytest.approx(4)
    with pytest.raises(Refused, match="none of 4 trials"):
        stable_width(rates, [0.1] * 4, 0.8)


def test_questions_about_nothing_are_refused():
    with pytest.raises(ConfigurationError, match="no arms"):
        probability_best({}, 2)
    with pytest.raises(ConfigurationError, match="bins is 0"):
        best_rate_by_decay([0.1], [0.1], [1.0], bins=0)
