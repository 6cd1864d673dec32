"""Whole studies on the digits: the same records alone, together, killed, and by several processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from study_tasks import mlp
from torch import nn

from descend.errors import ConfigurationError, DescendError
from descend.study.design import Arm, Study, log
from descend.study.running.conduct import conduct, run_in_processes
from descend.study.running.ledger import Memory, StudyDirectory
from descend.study.running.phases import pending, total_trials
from descend.study.task import Task

WORKLOAD = f"{Path(__file__).parents[2] / 'study_tasks.py'}:mlp"


def study(**fields):
    arms = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "adam": Arm("Adam", {"lr": log(1e-3, 1e-1)})}
    sizes = {"trials": 4, "searches": 2, "shortlist": 2, "shortlist_seeds": 2, "confirmation_seeds": 3}
    given = {"workload": WORKLOAD, "steps": (20,), "evaluations": 2, "arms": arms, **sizes, **fields}
    return Study(batch_sizes=(32,), **given)


def scores(records):
    return {name: (record.status, record.scores) for name, record in sorted(records.items())}


def test_alone_and_together_agree():
    """Winners may differ only where rounding decides; here none does."""
    alone = conduct(study(), Memory(), executor="one")
    together = conduct(study(), Memory(), executor="together")
    assert len(alone) == total_trials(study())
    assert alone.keys() == together.keys()
    for name, record in alone.items():
        assert together[name].status == record.status
        assert together[name].scores["train"]["loss"] == pytest.approx(record.scores["train"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_to_the_same_records(tmp_path):
    whole = conduct(study(), Memory(), executor="one")
    code = f"""
import sys; sys.path[:0] = [{str(Path.cwd())!r}, {str(Path(WORKLOAD).parent)!r}]
from study_tasks import mlp
from descend.study.running.conduct import work
work({str(tmp_path)!r}, "one")
"""
    StudyDirectory(tmp_path, study())
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code])
        before = len(StudyDirectory(tmp_path).records())
        deadline = time.monotonic() + 60
        while len(StudyDirectory(tmp_path).records()) < before + 3 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        old = time.time() - 1000
        for lease in (tmp_path / "leases").iterdir():
            os.utime(lease, (old, old))
    with StudyDirectory(tmp_path, study()) as directory:
        records = conduct(study(), directory, executor="one")
    assert scores(records) == scores(whole)


@pytest.mark.slow
def test_processes_share_a_study(tmp_path):
    StudyDirectory(tmp_path, study())
    run_in_processes(tmp_path, 2, "one")
    records = StudyDirectory(tmp_path).records()
    assert scores(records) == scores(conduct(study(), Memory(), executor="one"))
    lines = sum(len(file.read_text().splitlines()) for file in (tmp_path / "records").iterdir())
    assert lines == len(records)
    assert list((tmp_path / "leases").iterdir()) == []


def test_an_error_is_repeated_once_and_then_told():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    tried = []
    broken = Task(lambda: Broken(64, 10), nn.CrossEntropyLoss(), mlp().train).prepared()
    with pytest.raises(DescendError, match="ValueError: mine"):
        conduct(study(), Memory(), executor="one", task=broken, said=lambda records, record: tried.append(record))
    assert len(tried) == 2


def test_what_cannot_run_together_is_refused_only_when_asked_for():
    arms = {"torch": Arm("torch.optim:SGD", {"lr": log(1e-2, 1.0)})}
    small = study(arms=arms, searches=1, confirmation_seeds=1)
    assert len(conduct(small, Memory())) == total_trials(small)
    with pytest.raises(ConfigurationError, match="cannot run together"):
        conduct(small, Memory(), executor="together")
    with pytest.raises(ConfigurationError, match="did you mean 'together'"):
        conduct(small, Memory(), executor="togther")


def test_a_process_helps_with_another_arm_in_that_arms_own_way(tmp_path):
    """Somebody else holds all trials of the arm that runs together; the other arm's optimizer cannot."""
    arms = {"sgd": Arm("SGD", {"lr": log(1e-2, 1.0)}), "torch": Arm("torch.optim:SGD", {"lr": log(1e-2, 1.0)})}
    small = study(arms=arms, searches=1, confirmation_seeds=1)
    holder = StudyDirectory(tmp_path, small)
    holder.claim([one for one in pending(small, {}) if one.arm == "sgd"], 100)

    class Enough(Exception):
        pass

    def said(records, record):
        assert record.trial.arm == "torch"
        assert record.status == "done"
        if record.trial.phase == "confirmation":
            raise Enough

    with StudyDirectory(tmp_path) as helper, pytest.raises(Enough):
        conduct(small, helper, said=said)


def test_a_class_and_an_argument_of_the_workload_can_be_searched():
    arms = {"mine": Arm(torch.optim.SGD, {"lr": log(1e-2, 1.0), "workload.width": log(4, 9)}, {})}
    described = study(
        workload=lambda width: mlp(width=int(width)), arms=arms, trials=2, searches=1, confirmation_seeds=1
    )
    records = conduct(described, Memory())
    widths = {record.trial.configuration["workload.width"] for record in records.values()}
    assert len(widths) == 2
    assert all(record.status == "done" for record in records.values())
