"""Which trials a study needs, with records made up from a known landscape."""

import math
import re

from descend.study.design import Arm, Study, linear, log, one_minus_log
from descend.study.running import plan
from descend.study.running.plan import cells, confirmed, pending, total_trials, unknown_records, winner
from descend.study.running.trial import Record

SPACE = {"lr": log(1e-3, 1.0), "momentum": one_minus_log(0.01, 0.5)}


def study(**fields):
    given = {"trials": 8, "searches": 2, "shortlist": 2, "shortlist_seeds": 3, "confirmation_seeds": 6, **fields}
    arms = {"a": Arm("SGD", SPACE), "b": Arm("SGD", SPACE)}
    return Study(workload="t.py:t", batch_sizes=(32,), steps=(100,), arms=arms, **given)


def made_up(one, status="done"):
    """Best at lr = 0.1; seeds add a little."""
    value = -abs(math.log10(one.configuration["lr"]) + 1) + 1e-3 * (one.seed % 7)
    return Record(
        one, status, (0, 100), {"validation": {"accuracy": [0.0, value]}, "train": {"accuracy": [0.0, value]}}
    )


def run(described, most=10_000, records=None):
    records = dict(records or {})
    while (left := pending(described, records)) and len(records) < most:
        records[left[0].id] = made_up(left[0])
    return records


def test_every_phase_runs_with_seeds_of_its_own():
    described = study()
    records = run(described)
    assert len(records) == total_trials(described) == 4 * (8 + 6 + 6)
    seeds = {}
    for record in records.values():
        seeds.setdefault((record.trial.phase, record.trial.search), set()).add(record.trial.seed)
    listed = [seed for group in seeds.values() for seed in group]
    assert len(listed) == len(set(listed))
    assert len(seeds["confirmation", 0]) == 6


def test_the_winner_is_the_best_of_the_shortlist():
    described = study()
    records = run(described)
    for cell in cells(described):
        best = winner(described, cell, records)
        distances = [
            abs(math.log10(r.trial.configuration["lr"]) + 1)
            for r in records.values()
            if r.trial.phase == "search" and (r.trial.arm, r.trial.search) == (cell.arm, cell.search)
        ]
        assert abs(math.log10(best.configuration["lr"]) + 1) in sorted(distances)[:2]
        again = confirmed(described, cell, records)
        assert {r.trial.configuration["lr"] for r in again} == {best.configuration["lr"]}
        assert len(again) == 6


def test_the_same_arm_under_two_names_runs_the_same_trials():
    records = run(study())
    for record in records.values():
        if record.trial.arm == "a":
            twin = records[record.trial.id.replace("a/", "b/", 1)]
            assert twin.trial.configuration == record.trial.configuration
            assert twin.trial.seed == record.trial.seed


def test_without_common_random_numbers_arms_are_independent():
    records = run(study(common_random_numbers=False))
    by_arm = {
        arm: {(one.trial.seed, *one.trial.configuration.items()) for one in records.values() if one.trial.arm == arm}
        for arm in "ab"
    }
    assert len(by_arm["a"]) == len(by_arm["b"]) == 2 * (8 + 6 + 6)
    assert not {seed for seed, *_ in by_arm["a"]} & {seed for seed, *_ in by_arm["b"]}
    alone = study(common_random_numbers=False)
    alone = alone.model_copy(update={"arms": {"a": alone.arms["a"]}})
    assert set(run(alone)) == {name for name, one in records.items() if one.trial.arm == "a"}


def test_stopping_anywhere_changes_nothing():
    described = study()
    whole = run(described)
    for stop in (1, 7, 33, 61):
        assert run(described, records=run(described, most=stop)) == whole


def test_more_trials_and_arms_reuse_what_ran():
    small, large = study(), study(trials=12)
    before, after = run(small), run(large)
    searched = {name for name, record in before.items() if record.trial.phase == "search"}
    assert searched <= set(after)


def test_an_arm_with_settings_of_its_own_changes_no_trial_of_another():
    small = study()
    arms = {"c": Arm("Adam", {"lr": log(1e-3, 1), "beta1": linear(0.5, 0.99)}), **small.arms}
    large = Study(**{**dict(small), "arms": arms})
    before = run(small)
    assert unknown_records(large, before) == []
    after = run(large, records=before)
    assert {name: after[name] for name in before} == before


def test_records_of_other_settings_are_refused():
    grid = study(sampler="grid", trials=9, shortlist=1)
    assert unknown_records(grid, run(grid)) == []
    wrong = unknown_records(study(sampler="grid", trials=16, shortlist=1), run(grid))
    assert any(
        re.fullmatch(r"a/b32/s100/search0/search/001 ran with .*momentum \S+ and not \S+", line) for line in wrong
    )
    assert "seed" in unknown_records(study(seed=1), run(study()))[0]


def test_failures_lose_and_errors_are_not_records():
    described = study(searches=1)
    records = {}
    for one in pending(described, {}):
        far = abs(math.log10(one.configuration["lr"]) + 1) > 0.5
        records[one.id] = made_up(one, "diverged" if far else "done")
    best = winner(described, cells(described)[0], run(described, records=records))
    assert abs(math.log10(best.configuration["lr"]) + 1) <= 0.5


def test_without_a_shortlist_the_best_of_the_search_is_confirmed():
    described = study(shortlist=1)
    assert len(run(described)) == total_trials(described) == 4 * (8 + 6)


def test_the_trials_of_a_search_are_drawn_once(monkeypatch):
    drawn = []
    real = plan.points
    monkeypatch.setattr(plan, "points", lambda *given, **more: drawn.append(1) or real(*given, **more))
    large = Study(
        workload="t.py:t",
        batch_sizes=(32,),
        steps=(100,),
        arms={"a": Arm("SGD", {"lr": log(1e-3, 1.0)}), "b": Arm("Adam", {"lr": log(1e-3, 1.0)})},
        trials=8,
        searches=3,
        shortlist=2,
    )
    first = plan.pending(large, {})
    assert plan.pending(large, {}) == first
    assert list(plan.planned(large, {}).values()) == first
    assert len(drawn) == 6
