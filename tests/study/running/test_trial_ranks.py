"""Trials on several ranks: the scores of one rank, and an end in words where the ranks fail."""

import dataclasses
from pathlib import Path

import pytest
from study_tasks import mlp, trial

from descend.errors import ConfigurationError, DataError
from descend.study.design import Arm, Needs, Study, choice, log
from descend.study.running import trial_ranks
from descend.study.running.ray_pool import run_described
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record, TrialSetup
from descend.study.running.trial_ranks import DescribedTrial, run_on_ranks, work_as_rank

TESTS = Path(__file__).parents[2]
TASK = mlp(width=4, double=True).prepared()


def setup(folder, **fields):
    described = Study(
        workload=f"{TESTS / 'study_tasks.py'}:mlp",
        workload_options={"width": 4, "double": True},
        batch_sizes=32,
        steps=20,
        evaluations=2,
        arms={"a": Arm("SGD", {"lr": log(1e-3, 1.0)})},
        needs=Needs(ranks=2),
        checkpoint_every=8,
        **fields,
    )
    return TrialSetup.of(described, folder)


def test_what_a_rank_does(tmp_path):
    given, found = tmp_path / "trial.json", tmp_path / "record.json"
    given.write_text(DescribedTrial.of(setup(tmp_path), trial(steps=20)).text())
    work_as_rank(given, found)
    assert Record.read(found.read_text()).scores == run_trial(TASK, trial(steps=20), 2).scores


def test_ranks_that_fail_are_an_error_with_their_last_words(tmp_path, monkeypatch):
    program = ["bash", "-c", "echo far; echo no memory left >&2; exit 3"]
    monkeypatch.setattr(trial_ranks.local, "command", lambda ranks, arguments: program)
    (record,) = run_on_ranks(TASK, [trial()], 2, setup=setup(tmp_path))
    assert (record.status, record.message) == ("error", "its 2 ranks ended with exit code 3: no memory left")


@pytest.mark.slow
def test_two_ranks_give_the_scores_of_one_and_save_the_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    given = setup(tmp_path)
    (record,) = run_on_ranks(TASK, [trial(steps=20)], 2, setup=given)
    assert record.status == "done", record.message
    alone = run_trial(TASK, trial(steps=20), 2)
    for split in ("train", "validation"):
        assert record.scores[split]["loss"] == pytest.approx(alone.scores[split]["loss"], rel=1e-12)
    assert (given.checkpoints.run_dir(trial(steps=20)) / "checkpoints" / "step-20").is_dir()


WORKLOAD = f"{Path(__file__).parents[2] / 'study_tasks.py'}:mlp"
SPACE = {"lr": log(1e-3, 1.0), "workload.width": choice(4, 8)}


def study(**fields):
    given = {"workload": WORKLOAD, "workload_options": {"width": 4}, "arms": {"a": Arm("SGD", SPACE)}, **fields}
    return Study(batch_sizes=32, steps=45, trials=8, evaluations=3, **given)


@pytest.fixture
def described(tmp_path):
    setup = TrialSetup.of(study(checkpoint_every=7), tmp_path)
    return DescribedTrial.of(setup, trial(), mlp(width=4).prepared().fingerprint())


def test_what_was_written_is_read(described):
    again = DescribedTrial.read(described.text())
    assert again == described
    assert again.study() == study(checkpoint_every=7)
    assert again.setup().checkpoints.every_steps == 7


def test_a_worker_gives_the_record_of_the_trial(described):
    found = Record.read(run_described(described.text()))
    expected = run_trial(mlp(width=4).prepared(), trial(), 3)
    timeless = {"seconds": 0.0, "train_seconds": ()}
    assert dataclasses.replace(found, **timeless) == dataclasses.replace(expected, **timeless)
    assert len(found.train_seconds) == len(found.steps)
    assert described.checkpoints.run_dir(trial()).is_dir()


def test_arguments_of_the_workload_are_those_of_the_trial(described):
    wide = dataclasses.replace(described, trial=trial(**{"workload.width": 8}))
    assert wide.task().module(0)[0].out_features == 8
    assert described.task().module(0)[0].out_features == 4


def test_other_data_than_where_the_study_was_started_are_refused(described):
    with pytest.raises(DataError, match=r"has other data here than where the study was started"):
        dataclasses.replace(described, data="0123").task()


def test_a_node_without_the_working_directory_says_so(described, tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot be entered: No such file.* that all nodes share"):
        dataclasses.replace(described, folder=str(tmp_path / "missing")).task()
