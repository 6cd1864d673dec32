"""Rounds of tuning: what they cost together is kept with the study that they led to."""

import shutil

import pytest

from descend.errors import ConfigurationError, StorageError
from descend.study import Arm, Study, log, read_directory, run_study
from descend.study.lineage import read_rounds, total_trials

WORKLOAD = {"workload": "study_tasks:mlp", "workload_options": {"width": 4}, "batch_sizes": 64, "steps": 3}
LEAST = {"searches": 1, "shortlist": 1, "confirmation_seeds": 1, "evaluations": 1}


def study(trials, rounds=(), **arms):
    made = {name: Arm("SGD", {"lr": log(low, 1.0)}) for name, low in arms.items()}
    return Study(**WORKLOAD, **LEAST, arms=made, trials=trials, rounds=rounds)


@pytest.fixture
def rounds(tmp_path, monkeypatch):
    """A first round of one arm, a second of both, and a third that names the second, which names the first."""
    monkeypatch.chdir(tmp_path)
    run_study(study(3, a=0.01), "one", executor="one")
    run_study(study(2, ("one",), a=0.1, b=0.1), "two", executor="one")
    return run_study(study(1, ("two",), a=0.5, b=0.5), "three", executor="one")


def test_spaces_and_costs_of_all_rounds_are_added_up(rounds):
    assert [one.directory for one in rounds.rounds] == ["one", "two"]
    first, second = rounds.rounds
    assert first.arms["a"].space["lr"] == {"log": [0.01, 1.0]}
    assert (first.arms["a"].trials, first.arms["a"].steps, first.arms["a"].samples) == (4, 12, 768)
    assert second.arms["b"].trials == 3
    assert total_trials(rounds.rounds, rounds.costs) == {"a": 4 + 3 + 2, "b": 3 + 2}
    earlier = read_directory("one")
    assert first.arms["a"].median == earlier.groups[0].rows[0].median
    (unequal,) = [remark for remark in rounds.remarks if remark.kind == "budget"]
    assert (unequal.arm, unequal.text) == ("b", "had 3 trials in earlier rounds and another arm 7")
    text = rounds.report("three").with_suffix(".md").read_text()
    assert "| a | all rounds |  | 9 | 27 | 1,728 |" in text


def test_rounds_that_are_gone_stay_in_the_directory(rounds):
    shutil.rmtree("one")
    shutil.rmtree("two")
    assert read_directory("three").rounds == rounds.rounds[-2:]
    again = run_study(study(1, ("two",), a=0.5, b=0.5), "three", executor="one")
    assert [one.directory for one in again.rounds][-1] == "two"


def test_a_round_that_is_not_there_and_a_damaged_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"rounds: there is no study in .*nowhere"):
        run_study(study(1, ("nowhere",), a=0.5), "three", executor="one")
    (tmp_path / "three" / "lineage.json").write_text('[{"directory": 1}]')
    with pytest.raises(StorageError, match="not the rounds of a study"):
        read_rounds("three")
