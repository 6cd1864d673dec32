"""A trial as text: it comes back, and a process that has other files than the asking one says so."""

import dataclasses
from pathlib import Path

import pytest
from study_tasks import mlp, trial

from descend.errors import ConfigurationError, DataError
from descend.study.design import Arm, Study, choice, log
from descend.study.running.described_trial import DescribedTrial
from descend.study.running.ray_pool import run_described
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record
from descend.study.running.trial_setup import TrialSetup

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
