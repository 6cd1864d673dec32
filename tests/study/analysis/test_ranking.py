"""What may be called better, by simulation of searches and seeds."""

import math

import numpy as np
import pytest
import scipy.stats

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import Interval, Tuning, check_budgets, rank, train_beside_validation
from descend.study.analysis.ranking import compare_searches


def study(draw, arms, searches=2, seeds=10, search_sd=1.0, seed_sd=0.1):
    """Re-runs of arms with these means: each search ends elsewhere, and each seed elsewhere again."""
    return {
        name: [list(draw.normal(mean + draw.normal(scale=search_sd), seed_sd, size=seeds)) for _ in range(searches)]
        for name, mean in arms.items()
    }


@pytest.mark.parametrize(("searches", "search_sd"), [(2, 1.0), (2, 0.0), (4, 1.0)])
def test_the_same_under_two_names_is_not_ranked(searches, search_sd):
    draw = np.random.default_rng(0)
    claims = sum(rank(study(draw, {"a": 0, "b": 0}, searches, search_sd=search_sd)).ranked for _ in range(1000))
    assert claims <= 22  # 1 % of 1000, and four standard deviations


def test_five_of_the_same_are_not_ranked():
    draw = np.random.default_rng(1)
    claims = sum(rank(study(draw, dict.fromkeys("abcde", 0), 3)).ranked for _ in range(400))
    assert claims <= 12


def test_a_large_difference_is_ranked_and_says_by_how_much():
    draw = np.random.default_rng(2)
    found = [rank(study(draw, {"a": 0, "b": 3}, search_sd=0.1)) for _ in range(50)]
    assert sum(ranking.ranked for ranking in found) >= 45
    pair = next(ranking for ranking in found if ranking.ranked).pairs[0]
    assert (pair.better, pair.worse) == ("b", "a")
    assert pair.interval.sign == 1
    assert pair.interval.holds(pair.difference)


def test_a_loss_is_better_when_it_is_less():
    runs = study(np.random.default_rng(3), {"a": 0, "b": 5}, searches=3, search_sd=0.05)
    ranking = rank(runs, lower_is_better=True)
    assert ranking.ranked
    assert ranking.order == ("a", "b")
    assert ranking.pairs[0].difference == pytest.approx(5, abs=0.3)


@pytest.mark.parametrize("searches", [2, 3, 12])
def test_detectable_difference_is_found_in_four_of_five(searches):
    """The spread is known here, so the detectable difference is that of Student's t with this spread."""
    draw = np.random.default_rng(4)
    runs = {name: [[x] * 6 for x in np.sqrt(searches - 1) * _spread(searches)] for name in "ab"}
    size = rank(runs).detectable
    tests = [compare_searches(draw.normal(size, 1, searches), draw.normal(0, 1, searches), 0.01) for _ in range(1500)]
    assert np.mean([p < 0.01 for p, _ in tests]) == pytest.approx(0.8, abs=0.04)


def _spread(searches):
    """Numbers whose squares about their mean sum to 1."""
    x = np.arange(searches) - (searches - 1) / 2
    return x / np.linalg.norm(x)


def test_the_test_between_searches_is_students():
    a, b = [1.0, 1.4, 1.2], [2.0, 2.3, 1.9]
    theirs = scipy.stats.ttest_ind(a, b)
    p, interval = compare_searches(a, b, 0.05)
    assert p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert interval == pytest.approx(theirs.confidence_interval(0.95), rel=1e-9)


def test_one_search_does_not_rank():
    ranking = rank(study(np.random.default_rng(5), {"a": 0, "b": 100}, searches=1))
    assert not ranking.ranked
    assert "at least two" in ranking.reasons[0]
    assert ranking.detectable is None


def test_unequal_budgets_do_not_rank_and_say_why():
    runs = study(np.random.default_rng(6), {"sgd": 0, "adam": 100}, search_sd=0.01)
    tunings = {"sgd": Tuning(3, 100, 2, 1), "adam": Tuning(30, 100, 2, 1)}
    ranking = rank(runs, tunings=tunings)
    assert not ranking.ranked
    assert "sgd 3, adam 30" in ranking.pairs[0].reason
    with pytest.raises(Refused, match="trials a search"):
        check_budgets(tunings)
    assert rank(runs, tunings=dict.fromkeys(runs, Tuning(8, 100, 2, 1))).ranked


def test_few_seeds_do_not_rank():
    runs = study(np.random.default_rng(7), {"a": 0, "b": 100}, seeds=5, search_sd=0.01)
    ranking = rank(runs)
    assert not ranking.ranked
    assert "at least 6" in ranking.pairs[0].reason


def test_failed_searches_do_not_rank_and_do_not_crash():
    ranking = rank({"a": [[1.0] * 6, [1.0] * 6], "b": [[-math.inf] * 6, [0.5] * 6]})
    assert not ranking.ranked
    assert ranking.order == ("a", "b")
    assert "re-runs failed" in ranking.pairs[0].reason


def test_equal_to_the_last_bit_is_no_difference():
    ranking = rank({"a": [[1.0] * 6] * 2, "b": [[1.0] * 6] * 2})
    assert not ranking.ranked
    assert ranking.pairs[0].p == 1


def test_one_arm_is_no_comparison():
    with pytest.raises(ConfigurationError, match="two arms"):
        rank({"a": [[1.0]]})


UP, FLAT, DOWN = Interval(0.1, 0.2), Interval(-0.1, 0.1), Interval(-0.2, -0.1)


@pytest.mark.parametrize(
    ("train", "validation", "verdict"),
    [
        (UP, UP, "faster optimizer"),
        (UP, FLAT, "better optimizer that needs regularization"),
        (FLAT, UP, "regularizer"),
        (DOWN, UP, "regularizer"),
        (FLAT, FLAT, "no difference"),
        (DOWN, DOWN, "worse optimizer"),
        (DOWN, FLAT, "overfits less and trains less"),
    ],
)
def test_training_beside_validation(train, validation, verdict):
    assert train_beside_validation(train, validation) == verdict
