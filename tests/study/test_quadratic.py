"""The whole pipeline on a problem of known answer: search, shortlist, fresh seeds, target, fit, ranking."""

import numpy as np
import pytest

from descend.errors import DescendError
from descend.study import Arm, Study, analysis, log, run_study
from descend.study.quadratic import no_data, quadratic
from descend.study.simulate import Quadratic, sample

PROBLEM = Quadratic(dimensions=40, bins=0)
STEPS = {1: 400, 4: 150, 16: 80, 64: 60, 256: 60}
TARGET = 0.3
RATES = log(0.02, 1.9)


def study(seed, arms, **fields):
    given = {
        "workload": no_data,
        "trials": 16,
        "metric": "loss",
        "seed": seed,
        "evaluations": 10**6,
        "shortlist": 3,
        "shortlist_seeds": 5,
        "confirmation_seeds": 15,
        **fields,
    }
    return run_study(Study(arms=arms, **given), executor=quadratic(PROBLEM))


def scaling_study(seed):
    return study(
        seed,
        {"sgd": Arm("SGD", {"lr": RATES})},
        batch_sizes=tuple(STEPS),
        steps=STEPS,
        target={"value": TARGET},
        select="steps",
    )


def true_steps(size, seeds=400):
    """The best median of first hits over a fine grid of rates, by brute force with seeds of its own."""
    medians = []
    for rate in np.geomspace(0.02, 1.9, 40):
        risks = sample(
            "sgd", size, [rate] * seeds, steps=STEPS[size], seeds=range(10**6, 10**6 + seeds), problem=PROBLEM
        )
        hit = risks <= TARGET
        medians.append(np.median(np.where(hit.any(axis=0), hit.argmax(axis=0), np.inf)))
    return min(medians)


def test_a_trial_is_the_sampled_run():
    result = study(1, {"a": Arm("SGD", {"lr": RATES})}, batch_sizes=(4,), steps=(30,), searches=1, trials=4)
    record = next(iter(result.records.values()))
    rate, seed = record.trial.configuration["lr"], record.trial.seed
    alone = sample("sgd", 4, [rate], steps=30, seeds=[seed], problem=PROBLEM)[:, 0]
    assert record.scores["validation"]["loss"] == pytest.approx(alone, rel=1e-12)


def test_better_rates_are_ranked_above_worse_ones():
    arms = {"good": Arm("SGD", {"lr": log(0.3, 1.0)}), "poor": Arm("SGD", {"lr": log(0.003, 0.01)})}
    assert "good is better than poor" in study(2, arms, batch_sizes=(16,), steps=(60,), searches=3).verdict


def test_other_rules_are_refused():
    with pytest.raises(DescendError, match="run by SGD"):
        study(3, {"a": Arm("Adam", {"lr": RATES})}, batch_sizes=(4,), steps=(30,), searches=1, trials=4)


@pytest.mark.slow(seconds=60)
@pytest.mark.timeout(900)
def test_the_known_answer_is_recovered_within_its_intervals():
    """In at least 90 of 100 repeats: the critical batch size, and the steps at each batch size."""
    truth = {size: true_steps(size) for size in STEPS}
    fit = analysis.fit_critical_batch_size(list(truth), [steps * size for size, steps in truth.items()])
    held = 0
    steps_held = dict.fromkeys(STEPS, 0)
    for seed in range(100):
        result = scaling_study(seed)
        (one,) = result.scaling
        held += one.interval is not None and one.interval.holds(fit.critical_batch_size)
        for size, interval in zip(one.batch_sizes, one.intervals, strict=True):
            steps_held[size] += interval.holds(truth[size])
    assert held >= 90
    assert min(steps_held.values()) >= 90, steps_held


@pytest.mark.slow(seconds=15)
def test_one_thing_under_two_names_is_not_ranked():
    """Also with ranges that differ by nothing that matters, so that the two arms run other trials."""
    arms = {"a": Arm("SGD", {"lr": log(0.02, 1.9)}), "b": Arm("SGD", {"lr": log(0.021, 1.85)})}
    ranked = 0
    for seed in range(100):
        named = {"a": arms["a"], "b": arms["a" if seed % 2 else "b"]}
        ranked += study(seed, named, batch_sizes=(16,), steps=(40,), evaluations=2, trials=8).ranked
    assert ranked <= 5


@pytest.mark.parametrize("alike", [True, False])
def test_arms_that_share_their_seeds_are_compared_in_pairs(alike):
    arms = {"plain": Arm("SGD", {"lr": RATES}), "slow": Arm("SGD", {"lr": log(0.01, 0.95)})}
    fields = {"trials": 2, "shortlist": 1, "confirmation_seeds": 3, "searches": 4, "common_random_numbers": alike}
    result = study(7, arms, batch_sizes=(16,), steps=(30,), **fields)
    (pair,) = result.groups[0].ranking.pairs
    assert ("in pairs" in pair.reason) == alike
    medians = [[row.median for row in result.groups[0].of(name)] for name in (pair.worse, pair.better)]
    p, interval = analysis.ranking.compare_searches(*medians, 0.05, paired=alike)
    assert (pair.p, pair.interval) == (pytest.approx(p), pytest.approx(interval))
