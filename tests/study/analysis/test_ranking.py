"""What may be called better, by simulation of searches and seeds."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import Interval, Tuning, check_budgets, rank, train_beside_validation
from descend.study.analysis.power import detectable_by_searches
from descend.study.analysis.ranking import compare_ranks, compare_searches, resolution


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
    assert claims <= 77  # 5 % of 1000, and four standard deviations


@pytest.mark.parametrize("searches", [2, 3, 8])
def test_arms_of_unequal_spread_are_not_ranked_either(searches):
    """A variance pooled over both arms would rank 9 % of these at 2 searches."""
    draw = np.random.default_rng(12)
    claims = 0
    for _ in range(1000):
        runs = study(draw, {"a": 0}, searches, 1) | study(draw, {"b": 0}, searches, 1, search_sd=4.0)
        claims += rank(runs).ranked
    assert claims <= 77  # 5 % of 1000, and four standard deviations


@pytest.mark.parametrize(
    ("a", "b"),
    [([1e308, -1e308], [0.0, 0.0]), ([1.0, 2.0], [math.inf, -math.inf]), ([3.0], [1.0, 2.0]), ([], [1.0, 2.0])],
)
def test_numbers_without_a_finite_spread_prove_nothing(a, b):
    assert compare_searches(a, b, 0.05) == (1.0, None)


def test_five_of_the_same_are_not_ranked():
    draw = np.random.default_rng(1)
    claims = sum(rank(study(draw, dict.fromkeys("abcde", 0), 3)).ranked for _ in range(400))
    assert claims <= 37  # 5 % of 400, and four standard deviations


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


@pytest.mark.parametrize("sign", [1, -1])
def test_equivalence_is_that_of_two_one_sided_tests_of_scipy(sign):
    draw = np.random.default_rng(11)
    a, b = draw.normal(0, 1, 5), draw.normal(0.4, 1, 5)
    ranking = rank({"a": [[sign * x] for x in a], "b": [[sign * x] for x in b]}, margin=1.5, lower_is_better=sign < 0)
    above = scipy.stats.ttest_ind(a + 1.5, b, alternative="greater", equal_var=False).pvalue
    below = scipy.stats.ttest_ind(a - 1.5, b, alternative="less", equal_var=False).pvalue
    assert ranking.pairs[0].p_equivalent == pytest.approx(max(above, below), rel=1e-12)
    assert ranking.pairs[0].equivalent == (max(above, below) <= 0.05)
    assert ranking.margin == 1.5


def test_equivalence_takes_the_searches_that_it_has_and_all_pairs_together():
    close = {"a": [[0.0], [0.1], [-0.1]], "b": [[0.01], [0.11], [-0.09]], "c": [[9.0], [9.1], [8.9]]}
    found = {(pair.better, pair.worse): pair for pair in rank(close, margin=1.0).pairs}
    assert [pair.equivalent for pair in found.values()] == [True, False, False]
    alone = rank({name: close[name] for name in "ab"}, margin=1.0).pairs[0]
    assert found["b", "a"].p_equivalent == pytest.approx(3 * alone.p_equivalent)  # Holm
    assert rank(close).pairs[0].p_equivalent is None
    assert not rank(close).pairs[0].equivalent
    one = rank({name: searches[:1] for name, searches in close.items()}, margin=1.0)
    assert [pair.p_equivalent for pair in one.pairs] == [1.0] * 3
    failed = rank({"a": [[0.0], [-math.inf]], "b": [[0.0], [0.0]]}, margin=1.0)
    assert (failed.pairs[0].p_equivalent, failed.pairs[0].equivalent) == (1.0, False)
    same = rank({"a": [[1.0]] * 3, "b": [[1.0]] * 3}, margin=0.5).pairs[0]
    assert (same.ranked, same.equivalent) == (False, True)
    unequal = rank(
        close, margin=1.0, tunings={"a": Tuning(8, 1, 3, 1), "b": Tuning(9, 1, 3, 1), "c": Tuning(8, 1, 3, 1)}
    )
    assert not any(pair.equivalent for pair in unequal.pairs)


@pytest.mark.parametrize("margin", [0, -1.0, math.inf, math.nan])
def test_a_margin_is_above_0(margin):
    with pytest.raises(ConfigurationError, match="margin of equivalence must be a number above 0"):
        rank({"a": [[1.0]], "b": [[1.0]]}, margin=margin)


@pytest.mark.parametrize("searches", [2, 3, 12])
def test_detectable_difference_is_found_in_four_of_five(searches):
    """The spread is known here, so the detectable difference is that of Welch's t with this spread."""
    draw = np.random.default_rng(4)
    runs = {name: [[x] * 6 for x in np.sqrt(searches - 1) * _spread(searches)] for name in "ab"}
    size = rank(runs).detectable
    tests = [compare_searches(draw.normal(size, 1, searches), draw.normal(0, 1, searches), 0.05) for _ in range(1500)]
    assert np.mean([p < 0.05 for p, _ in tests]) == pytest.approx(0.8, abs=0.04)


def test_the_interval_of_the_detectable_difference_holds_the_true_one():
    draw = np.random.default_rng(8)
    truth = detectable_by_searches(4, 0.05) * math.sqrt(2)  # a search and its one re-run, of variance 1 each
    found = [rank(study(draw, {"a": 0, "b": 0}, 4, seeds=1, seed_sd=1.0)).detectable_interval for _ in range(400)]
    assert np.mean([interval.holds(truth) for interval in found]) == pytest.approx(0.9, abs=0.06)


def test_the_probability_that_the_better_one_is_better_is_calibrated():
    """Of many pairs whose true difference has a flat distribution, as many as it says are ahead rightly."""
    draw = np.random.default_rng(9)
    stated, right = [], []
    for truth in draw.uniform(-8, 8, 600):
        (pair,) = rank(study(draw, {"a": 0.0, "b": truth}, 3, seeds=3)).pairs
        stated.append(pair.probability)
        right.append((pair.better == "b") == (truth > 0))
    assert np.mean(stated) == pytest.approx(np.mean(right), abs=0.05)
    unsure = np.asarray(stated) < 0.9
    assert np.mean(np.asarray(right)[unsure]) == pytest.approx(np.mean(np.asarray(stated)[unsure]), abs=0.13)


def test_adding_searches_finds_more():
    draw = np.random.default_rng(10)
    found = [
        sum(rank(study(draw, {"a": 0, "b": 2}, searches, seeds=3)).ranked for _ in range(150))
        for searches in (2, 3, 5, 8)
    ]
    assert found == sorted(found)
    assert found[-1] > 135


@pytest.mark.parametrize("searches", [2, 5])
def test_ties_of_rounded_scores_are_no_certainty(searches):
    """Eight arms whose scores are counted in steps four times as large as their scatter: most medians are equal."""
    draw = np.random.default_rng(11)
    claims = 0
    for offset in draw.uniform(-0.5, 0.5, 60):
        runs = study(draw, dict.fromkeys("abcdefgh", 4 * offset), searches, search_sd=0.7, seed_sd=0.7)
        rounded = {name: [[4 * round(x / 4) for x in values] for values in own] for name, own in runs.items()}
        claims += rank(rounded).ranked
    assert claims <= 8


def test_the_step_of_scores():
    assert resolution([0.25, 0.5, 0.25, 1.0]) == 0.25
    assert resolution([0.1, 0.2, 0.3]) == 0  # no two are equal
    assert resolution([1.0, 1.0]) == 0  # nothing is known of the distance to another
    assert resolution([0.1 + 0.2, 0.3, 0.5, math.inf, math.inf]) == pytest.approx(0.2)  # equal but for the last bit


def _spread(searches):
    """Numbers whose squares about their mean sum to 1."""
    x = np.arange(searches) - (searches - 1) / 2
    return x / np.linalg.norm(x)


def test_the_test_between_searches_is_welchs():
    a, b = [1.0, 1.4, 1.2], [2.0, 2.3, 1.9, 2.1]
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False)
    p, interval = compare_searches(a, b, 0.05)
    assert p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert interval == pytest.approx(theirs.confidence_interval(0.95), rel=1e-9)


def test_an_arm_of_little_spread_has_three_tenths_of_the_pooled_variance():
    """b scatters 80 times as wide; with three arms the third one counts too, at its degrees of freedom."""
    arms = {"a": [1.0, 1.4, 1.2], "b": [2.0, 9.0, 1.9, 4.0], "c": [0.0, 0.1]}
    variances = {name: np.var(values, ddof=1) for name, values in arms.items()}
    for names in ("ab", "abc"):
        freedom = sum(len(arms[name]) - 1 for name in names)
        floor = 0.3 * sum((len(arms[name]) - 1) * variances[name] for name in names) / freedom
        assert variances["a"] < floor < variances["b"]
        pair = rank({name: [[value] for value in arms[name]] for name in names}).pairs[0]
        theirs = scipy.stats.ttest_ind_from_stats(
            np.mean(arms["a"]), math.sqrt(floor), 3, np.mean(arms["b"]), math.sqrt(variances["b"]), 4, equal_var=False
        )
        assert 2 * (1 - pair.probability) == pytest.approx(theirs.pvalue, rel=1e-9)  # before Holm


def test_the_scatter_of_seeds_is_a_floor_under_the_spread_of_searches():
    """All searches end at one median by chance, though their seeds scatter: a quarter of π/2 s²/n remains."""
    values = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    runs = {"a": [[*values], [*values]], "b": [[*values + 3], [*values + 3]]}
    floor = math.pi / 8 * 2.5 / 5
    theirs = scipy.stats.ttest_ind_from_stats(3.0, math.sqrt(floor), 2, 0.0, math.sqrt(floor), 2, equal_var=False)
    (pair,) = rank(runs, margin=5.0).pairs
    assert pair.p == pytest.approx(theirs.pvalue)
    assert pair.p_equivalent == pytest.approx(scipy.stats.t.sf(2 / math.sqrt(floor), 2))
    scattered = {name: [[*searches, -math.inf, math.inf] for searches in own] for name, own in runs.items()}
    assert rank(scattered).pairs[0].p == pytest.approx(pair.p)  # failures have no variance
    alone = rank({name: [[np.median(searches)] for searches in own] for name, own in runs.items()})
    assert alone.pairs[0].p != pytest.approx(pair.p)  # one re-run shows no scatter of seeds


@pytest.mark.parametrize("arms", [3, 8])
def test_searches_that_end_in_one_of_two_narrow_modes_are_not_ranked(arms):
    """Without floors 9 % of studies of 8 arms and 3 searches would be: all of one arm in one mode by chance."""
    draw = np.random.default_rng(17)
    claims = 0
    for _ in range(400):
        modes = draw.choice([-1.0, 1.0], (arms, 3, 1)) + 0.05 * draw.normal(size=(arms, 3, 3))
        claims += rank({str(number): own.tolist() for number, own in enumerate(modes)}).ranked
    assert claims <= 37  # 5 % of 400, and four standard deviations


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


def test_a_single_seed_can_rank():
    """The unit is the search: the noise of a seed is part of the spread between searches."""
    assert rank(study(np.random.default_rng(7), {"a": 0, "b": 100}, seeds=1, search_sd=0.01)).ranked


FAILS = [-math.inf] * 6


def test_an_arm_that_always_fails_is_worse():
    (pair,) = rank({"a": [[1.0] * 6, [1.1] * 6], "b": [FAILS, FAILS]}).pairs
    assert pair.ranked
    assert (pair.better, pair.worse) == ("a", "b")
    assert "every re-run of the worse one failed" in pair.reason
    assert math.isnan(pair.difference)
    assert pair.interval is None


@pytest.mark.parametrize(("searches", "is_ranked"), [(2, False), (5, True)])
def test_searches_that_failed_are_the_worst_of_their_ranks(searches, is_ranked):
    runs = {"a": [[1.0 + i] * 6 for i in range(searches)], "b": [[0.5] * 6, *[FAILS] * (searches - 1)]}
    ranking = rank(runs)
    assert ranking.ranked == is_ranked
    assert ranking.order == ("a", "b")
    assert "re-runs failed" in ranking.pairs[0].reason
    values = [[1.0 + i for i in range(searches)], [0.5, *[0.0] * (searches - 1)]]
    assert ranking.pairs[0].p == pytest.approx(_permutations(*values))


def _permutations(a, b):
    """The p-value of the sum of ranks by counting."""
    ranks = scipy.stats.rankdata([*a, *b])
    sums = [sum(some) for some in itertools.combinations(ranks, len(a))]
    own, middle = sum(ranks[: len(a)]), np.mean(sums)
    return np.mean([abs(one - middle) >= abs(own - middle) - 1e-9 for one in sums])


@pytest.mark.parametrize("third", [[[1.0] * 6, [1.2] * 6], [[1.0] * 6, FAILS]], ids=["never", "by chance"])
def test_where_searches_fail_by_chance_one_that_always_failed_may_have_done_so_too(third):
    """Of equal arms with a failure in each second search, an eighth of the pairs would be ranked at two searches."""
    pairs = rank({"a": [[1.0] * 6, [1.1] * 6], "b": [FAILS, FAILS], "c": third}).pairs
    assert pairs[0].ranked == (third[1] != FAILS)


@pytest.mark.parametrize("counts", [(2, 2), (3, 6), (8, 8)])
def test_ranks_are_compared_as_by_scipy(counts):
    draw = np.random.default_rng(sum(counts))
    a, b = (np.round(draw.normal(mean, size=count), 1) for mean, count in zip((0, 1), counts, strict=True))
    b[0] = -math.inf
    method = scipy.stats.PermutationMethod(n_resamples=20_000)
    assert compare_ranks(a, b) == pytest.approx(scipy.stats.mannwhitneyu(a, b, method=method).pvalue)


def test_many_ranks_are_compared_by_drawn_permutations():
    draw = np.random.default_rng(4)
    a, b = draw.normal(size=12), draw.normal(0.5, size=12)
    exact = scipy.stats.mannwhitneyu(a, b, method="exact").pvalue
    assert compare_ranks(a, b) == pytest.approx(exact, abs=4 * 2 * math.sqrt(exact / 2 / 20_000))


def test_paired_searches_are_compared_by_either_test_at_six_tenths_of_the_level():
    a = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    b = a + np.array([0.5, 0.6, 0.7, 0.4, 0.5, 0.9])
    welch, in_pairs = scipy.stats.ttest_ind(b, a, equal_var=False), scipy.stats.ttest_rel(b, a)
    p, interval = compare_searches(b, a, 0.05, paired=True)
    assert p == pytest.approx(in_pairs.pvalue / 0.6)
    assert welch.pvalue > 0.05 > p
    assert interval == pytest.approx(tuple(in_pairs.confidence_interval(1 - 0.6 * 0.05)))
    (pair,) = rank({"a": [[x] for x in a], "b": [[x] for x in b]}, paired=True).pairs
    assert (pair.better, pair.p) == ("b", pytest.approx(p))
    assert "in pairs" in pair.reason
    assert not rank({"a": [[x] for x in a], "b": [[x] for x in b]}).ranked
    alone, apart = compare_searches(b, a[::-1], 0.05, paired=True)
    unlike = scipy.stats.ttest_ind(b, a, equal_var=False)
    assert alone == pytest.approx(unlike.pvalue / 0.6)
    assert apart == pytest.approx(tuple(unlike.confidence_interval(1 - 0.6 * 0.05)))


def test_three_searches_show_too_little_of_how_pairs_vary():
    a, b = [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]
    assert compare_searches(b, a, 0.05, paired=True) == compare_searches(b, a, 0.05)
    assert compare_searches([*b, 5.0], [*a, 4.0], 0.05, paired=True)[0] == 0.0


def test_ties_of_pairs_are_no_certainty():
    """Scores in steps of 1: the differences are all 1, and vary as two roundings do."""
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]
    p, _ = compare_searches(b, a, 0.05, 1.0, paired=True)
    assert p == pytest.approx(2 * scipy.stats.t.sf(1 / math.sqrt(2 / 12 / 4), 3) / 0.6)


def test_pairs_take_as_many_searches_of_every_arm():
    with pytest.raises(ConfigurationError, match="as many searches, got a 4, b 5"):
        rank({"a": [[1.0]] * 4, "b": [[1.0]] * 5}, paired=True)


@pytest.mark.parametrize(("searches", "alike", "wider"), [(4, 0.0, 1.0), (5, 0.0, 4.0), (5, 0.5, 1.0)])
def test_pairs_of_equal_arms_are_not_ranked(searches, alike, wider):
    draw = np.random.default_rng(15)
    claims = 0
    for _ in range(1000):
        common, a, b = draw.normal(size=(3, searches))
        a, b = (math.sqrt(alike) * common + math.sqrt(1 - alike) * own for own in (a, b))
        claims += compare_searches(a, wider * b, 0.05, paired=True)[0] <= 0.05
    assert claims <= 77  # 5 % of 1000, and four standard deviations


def test_pairs_within_a_margin():
    """Their differences are all about 0, though searches scatter: in pairs that shows, else it does not."""
    draw = np.random.default_rng(16)
    common = draw.normal(size=8)
    runs = {name: [[x] for x in common + draw.normal(0, 0.05, 8)] for name in "ab"}
    assert rank(runs, margin=0.2, paired=True).pairs[0].equivalent
    assert not rank(runs, margin=0.2).pairs[0].equivalent
    assert not rank(runs, margin=0.001, paired=True).pairs[0].equivalent


def test_two_arms_that_always_fail_are_not_ranked():
    assert not rank({"a": [FAILS] * 3, "b": [FAILS] * 3}).ranked


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
