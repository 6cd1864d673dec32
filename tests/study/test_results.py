"""What records say: rows, verdict, cost and scaling, from records that were made up."""

import math

import numpy as np
import pytest
from study_tasks import fabricated

from descend.errors import ConfigurationError
from descend.study.design import Arm, Study, log
from descend.study.design.study import read_study
from descend.study.design.toml import to_toml
from descend.study.report.tables import pairs
from descend.study.results import compare_records


def study(**fields):
    arms = {"good": Arm("SGD", {"lr": log(0.1, 1)}), "bad": Arm("SGD", {"lr": log(0.1, 1)})}
    sizes = {"trials": 2, "searches": 3, "shortlist": 1, "confirmation_seeds": 6, "steps": (10,), "arms": arms}
    return Study(**{"workload": "t.py:t", "batch_sizes": (32,), **sizes, **fields})


def noisy(middle, sd=0.01):
    """Scores around the middle of each arm, the same for the same trial."""

    def score(trial):
        return middle[trial.arm] + sd * np.random.default_rng([trial.seed, ord(trial.arm[0])]).normal()

    return score


def compared(score, **fields):
    described = study(**fields)
    return compare_records(described, fabricated(described, score))


def test_a_large_difference_is_ranked_and_its_cause_named():
    result = compared(noisy({"good": 0.9, "bad": 0.2}))
    assert result.ranked
    (pair,) = result.groups[0].ranking.pairs
    assert (pair.better, pair.worse) == ("good", "bad")
    assert pair.difference == pytest.approx(0.7, abs=0.03)
    assert "good is better than bad by 0." in result.verdict
    assert "training beside validation: faster optimizer" in result.verdict


def test_no_difference_is_not_ranked():
    result = compared(noisy({"good": 0.5, "bad": 0.5}))
    assert not result.ranked
    assert result.verdict.startswith("cannot rank")


def test_a_row_is_the_winner_of_a_search_and_its_re_runs():
    """Trial 1 wins each search and repeats to less than it found."""
    result = compared(lambda trial: 0.9 - 0.1 * (trial.index == 0) - 0.2 * (trial.phase == "confirmation"))
    row = result.groups[0].of("good")[0]
    assert row.best_of_search == pytest.approx(0.9)
    assert row.values == pytest.approx((0.7,) * 6)
    assert row.median == pytest.approx(0.7)
    assert row.winner["lr"] == row.searched[1].trial.configuration["lr"]
    assert len(result.rows) == 1 + 2 * 3
    assert len(result.table.splitlines()) == len(result.rows)


def test_a_failure_is_the_worst_result_and_is_charged():
    result = compared(lambda trial: "diverged" if trial.arm == "bad" else 0.5)
    row = result.groups[0].of("bad")[0]
    assert row.values == (-math.inf,) * 6
    assert math.isnan(row.train_median)
    assert result.costs["bad"].statuses == {"diverged": 3 * (2 + 6)}
    assert result.costs["bad"].steps == result.costs["good"].steps


def test_the_least_loss_is_the_best():
    result = compared(noisy({"good": 0.9, "bad": 0.2}), metric="loss")
    assert result.lower
    assert result.groups[0].ranking.order == ("good", "bad")
    assert result.unit == "loss on validation samples"


@pytest.mark.parametrize(("target", "met"), [(0.3, "good in 3 of 3 searches, bad in 3 of 3"), (0.7, "bad in 0 of 3")])
def test_who_meets_the_target_and_who_is_matched(target, met):
    result = compared(noisy({"good": 0.5 + (target > 0.6) * 0.3, "bad": 0.5}), target={"value": target})
    assert met in result.verdict
    assert ("matched: good, bad all meet the target" in result.verdict) == (target < 0.6)


@pytest.mark.parametrize(("margin", "are"), [(0.2, True), (1e-9, False)])
def test_with_a_margin_the_verdict_and_the_report_say_what_is_equivalent(margin, are):
    result = compared(noisy({"good": 0.5, "bad": 0.5}), margin=margin)
    shown = (
        f"are equivalent within {margin:g} (accuracy on validation samples, two one-sided t tests over searches, p = "
    )
    assert (shown in result.verdict) == are
    assert ("1 of 1 pairs are not shown to be equivalent within 1e-09" in result.verdict) == (not are)
    table = pairs(result.groups[0])
    assert table.rows[0][table.heads.index(f"equivalent within {margin:g}")] == ("yes" if are else "not shown")
    assert "equivalent" not in compared(noisy({"good": 0.5, "bad": 0.5})).verdict


def test_a_study_without_a_margin_is_the_study_that_it_was(tmp_path):
    assert "margin" not in study().plain()
    assert study(margin=0.1).plain()["margin"] == 0.1
    (tmp_path / "study.toml").write_text(to_toml(study(margin=0.1)))
    assert read_study(tmp_path / "study.toml").margin == 0.1
    with pytest.raises(ConfigurationError, match="margin"):
        study(margin=0.0)


def test_unequal_freedom_matches_no_arm():
    arms = {"good": Arm("SGD", {"lr": log(0.1, 1)}), "bad": Arm("SGD", {"lr": log(0.1, 1), "momentum": log(0.1, 0.9)})}
    result = compared(noisy({"good": 0.5, "bad": 0.5}), target={"value": 0.3}, arms=arms)
    assert "nothing is called matched" in result.verdict


def test_an_unfinished_study_has_rows_and_no_ranking():
    described = study()
    records = fabricated(described, lambda trial: 0.5)
    last = next(reversed(records))
    result = compare_records(described, {name: one for name, one in records.items() if name != last})
    assert result.unfinished == 1
    assert result.verdict.splitlines()[1].startswith("unfinished: 1 trials")
    assert result.groups[0].ranking is None
    assert not result.ranked


def test_records_that_are_not_asked_for_are_in_the_cost_alone():
    described, larger = study(searches=2), study(searches=3)
    records = fabricated(larger, lambda trial: 0.5)
    result = compare_records(described, records)
    assert len(result.unasked) == 2 * (2 + 6)
    assert sum(one.trials for one in result.costs.values()) == len(records)
    assert len(result.groups[0].rows) == 4


def test_steps_to_the_target_against_the_batch_size():
    """Steps of 4000 (1/B + 1/64), by straight curves that are half way at the target: the fit finds 64."""
    sizes = (8, 32, 128, 512)
    steps = {size: round(4000 * (1 / size + 1 / 64)) * 4 for size in sizes}
    result = compared(
        lambda trial: 4.0 * 0.5 * (1 + 0.02 * np.random.default_rng(trial.seed).normal()),
        batch_sizes=sizes,
        steps=steps,
        evaluations=250,
        searches=1,
        target={"value": 0.5},
        select="steps",
    )
    assert result.unit == "steps to accuracy 0.5 on validation samples"
    one = result.scaling[0]
    assert one.batch_sizes == sizes
    assert one.fit.critical_batch_size == pytest.approx(64, rel=0.1)
    assert one.interval.low < 64 < one.interval.high


def test_one_batch_size_has_no_scaling():
    assert compared(lambda trial: 0.5).scaling == []
