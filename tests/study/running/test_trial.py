"""Records of trials: scores at their end, steps to a target, and lines that come back."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from study_tasks import mlp, trial

from descend.errors import ConfigurationError, StorageError
from descend.study.design import Arm, Needs, Study, log
from descend.study.running import trial as trial_module
from descend.study.running.trial import (
    Record,
    Trial,
    TrialCheckpoints,
    TrialSetup,
    evaluation_steps,
    trials_on_this_machine,
)

TRIAL = Trial("a", 32, 100, 1, "search", 7, 0, 5, {"optimizer": "SGD", "lr": 0.1})
RECORD = Record(TRIAL, "done", (0, 50, 100), {"validation": {"accuracy": [0.1, 0.5, 0.7]}}, seconds=1.5)


def test_a_name_says_which_trial_it_is():
    assert TRIAL.id == "a/b32/s100/search1/search/007"
    assert replace(TRIAL, phase="confirmation", repeat=3).id == "a/b32/s100/search1/confirmation/007-03"


def test_the_final_score_is_the_last_and_nan_for_a_failure():
    assert RECORD.final("validation", "accuracy") == 0.7
    for status in ("diverged", "error", "out of memory"):
        assert math.isnan(replace(RECORD, status=status).final("validation", "accuracy"))
    assert replace(RECORD, status="collapsed").final("validation", "accuracy") == 0.7
    with pytest.raises(StorageError, match="has no 'loss' on validation samples"):
        RECORD.final("validation", "loss")


@pytest.mark.parametrize(
    ("target", "consecutive", "steps"),
    [(0.5, 1, 50), (0.7, 1, 100), (0.5, 2, 50), (0.7, 2, math.inf), (0.8, 1, math.inf)],
)
def test_steps_to_a_target(target, consecutive, steps):
    assert RECORD.steps_to("validation", "accuracy", target, lower=False, consecutive=consecutive) == steps


def test_a_trial_without_a_look_never_met_its_target():
    assert Record(TRIAL, "diverged", failed_at=1).steps_to("validation", "accuracy", 0.5, lower=False) == math.inf


def test_a_line_comes_back():
    for record in (RECORD, Record(TRIAL, "diverged", (0,), {"train": {"loss": [2.3]}}, failed_at=3, message="ü")):
        assert Record.read(record.line()) == record


def test_what_is_not_finite_comes_back_as_nan():
    read = Record.read(replace(RECORD, scores={"train": {"loss": [1.0, math.inf, math.nan]}}).line())
    assert read.scores["train"]["loss"][0] == 1.0
    assert all(math.isnan(value) for value in read.scores["train"]["loss"][1:])


def test_a_changed_line_is_refused_by_its_checksum():
    line = RECORD.line()
    with pytest.raises(StorageError, match="checksum"):
        Record.read(line.replace("0.7", "0.9"))
    with pytest.raises(StorageError, match="not a record of a trial"):
        Record.read(line[:-30])


@pytest.mark.parametrize(
    ("steps", "evaluations", "at"),
    [(10, 5, (0, 2, 4, 6, 8, 10)), (7, 3, (0, 3, 5, 7)), (2, 10, (0, 1, 2)), (1, 1, (0, 1))],
)
def test_evaluations_are_spread_and_end_with_the_run(steps, evaluations, at):
    assert evaluation_steps(steps, evaluations) == at


def study(**fields):
    given = {"workload": "t.py:t", "arms": {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}, **fields}
    return Study(batch_sizes=32, steps=100, trials=8, **given)


@pytest.fixture
def machine(monkeypatch):
    """One with 4 GiB and 2 GPUs."""
    monkeypatch.setattr(trial_module, "memory_bytes", lambda: 4 * 2**30)
    monkeypatch.setattr(trial_module, "_gpus", lambda: 2)


@pytest.mark.usefixtures("machine")
def test_as_many_trials_as_there_is_room_for_and_one_where_processors_are_too_few():
    assert trials_on_this_machine(Needs(cores=2), 8) == 4
    assert trials_on_this_machine(Needs(cores=2, memory_gib=1.5), 8) == 2
    assert trials_on_this_machine(Needs(cores=2, gpus=2), 8) == 1
    assert trials_on_this_machine(Needs(cores=16), 8) == 1


@pytest.mark.usefixtures("machine")
def test_too_little_of_what_cannot_be_shared_is_refused_at_once():
    with pytest.raises(ConfigurationError) as error:
        trials_on_this_machine(Needs(gpus=2, memory_gib=3, ranks=2), 8)
    gpus, memory = error.value.problems
    assert gpus.startswith("a trial needs 4 GPUs and this machine has 2: run the study where there are as many")
    assert memory.startswith("a trial needs 6 GiB of memory and this machine has 4 GiB: lower memory_gib")


def test_the_memory_of_this_machine_is_that_of_the_system():
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert trial_module.memory_bytes() == pytest.approx(int(total.split()[1]) * 1024, rel=0.01)


def test_checkpoints_need_a_directory(tmp_path, monkeypatch):
    assert TrialSetup.of(study(), tmp_path).checkpoints is None
    with pytest.raises(ConfigurationError, match="saves trials in the directory of the study"):
        TrialSetup.of(study(checkpoint_every=5), None)
    monkeypatch.chdir(tmp_path)
    setup = TrialSetup.of(study(checkpoint_every=5), Path("runs"))
    assert setup.checkpoints == TrialCheckpoints(tmp_path / "runs" / "trials", 5)


def test_each_trial_has_a_run_directory_within_the_folder_whatever_its_arm_is_called(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    names = {saved.run_dir(trial(index, arm=arm)) for arm in ("a", "../a", "a b") for index in (1, 2)}
    assert len(names) == 6
    assert {name.parent for name in names} == {tmp_path}


def test_only_the_run_directory_of_the_trial_is_removed(tmp_path):
    saved = TrialCheckpoints(tmp_path, 5)
    for index in (1, 2):
        saved.run_dir(trial(index)).mkdir()
    saved.discard(trial(1))
    saved.discard(trial(1))
    assert list(tmp_path.iterdir()) == [saved.run_dir(trial(2))]


def test_ranks_need_names():
    unnamed = study(workload=mlp(), needs=Needs(ranks=2))
    with pytest.raises(ConfigurationError, match=r"trials on 2 ranks open the workload in processes of their own"):
        TrialSetup.of(unnamed, None)
