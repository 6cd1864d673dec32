"""Trials at once are the trials one by one."""

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.study.running.one import run_one_by_one
from descend.study.running.together import run_together, whether_together
from descend.study.task import Task

TASK = mlp(double=True).prepared()
RATES = [0.01, 0.05, 0.2]
ARMS = {
    "sgd": {},
    "momentum": {"momentum": [0.5, 0.9, 0.95]},
    "nesterov with decay": {"momentum": 0.9, "nesterov": True, "weight_decay": [1e-4, 1e-2, 0.1]},
    "adam": {"optimizer": "Adam", "lr": [1e-3, 3e-3, 1e-2], "beta1": [0.8, 0.9, 0.95]},
    "adamw on a cosine": {"optimizer": "AdamW", "lr": [1e-3, 3e-3, 1e-2], "weight_decay": 0.1, "schedule": "cosine"},
    "lars beside sgd": {
        "optimizer": "LARS",
        "lr": [1.0, 5.0, 20.0],
        "weight_decay": 1e-3,
        "roles.vectors.optimizer": "SGD",
        "roles.vectors.lr_mult": [0.01, 0.02, 0.05],
        "roles.vectors.weight_decay": 0.0,
    },
    "lamb": {"optimizer": "LAMB", "lr": [1e-3, 3e-3, 1e-2], "schedule": "linear", "schedule.warmup_fraction": 0.2},
    "lion": {"optimizer": "Lion", "lr": [1e-4, 3e-4, 1e-3]},
}


def three(settings):
    settings = {"lr": RATES, **settings}
    return [
        trial(i, **{name: value[i] if isinstance(value, list) else value for name, value in settings.items()})
        for i in range(3)
    ]


@pytest.mark.parametrize("name", ARMS)
def test_together_is_one_by_one(name):
    """In float64 and over more than an epoch, whose last batch is smaller than the others."""
    trials = three(ARMS[name])
    assert whether_together(TASK, trials, {}) is None
    for alone, among in zip(run_one_by_one(TASK, trials, 5), run_together(TASK, trials, 5), strict=True):
        assert among.status == alone.status == "done"
        assert among.steps == alone.steps
        for split in ("train", "validation"):
            assert among.scores[split]["loss"] == pytest.approx(alone.scores[split]["loss"], rel=1e-7)
            assert among.scores[split]["accuracy"] == alone.scores[split]["accuracy"]


def test_a_trial_gives_the_same_bits_again_and_whoever_diverges_beside_it():
    wild = trial(1, lr=1e200)
    first = list(run_together(TASK, [trial(0), wild], 5))
    again = list(run_together(TASK, [trial(0), wild], 5))
    assert [record.scores for record in first] == [record.scores for record in again]
    (alone,) = run_one_by_one(TASK, [wild], 5)
    assert (first[1].status, first[1].failed_at) == (alone.status, alone.failed_at) == ("diverged", alone.failed_at)
    assert first[0].status == "done"


def test_single_precision_agrees_to_single_precision():
    task = mlp().prepared()
    trials = three({"optimizer": "Adam", "lr": [1e-3, 3e-3, 1e-2]})
    for alone, among in zip(run_one_by_one(task, trials, 2), run_together(task, trials, 2), strict=True):
        assert among.scores["validation"]["loss"] == pytest.approx(alone.scores["validation"]["loss"], rel=1e-4)


def test_what_cannot_run_together_is_named():
    assert "another library" in whether_together(TASK, [trial(optimizer="torch.optim:SGD")], {})
    assert "one tensor at a time" in whether_together(TASK, [trial(optimizer="Muon")] * 2, {})
    assert "no number" in whether_together(TASK, [trial(), trial(momentum=0.9)], {})
    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)
    dropping = Task(lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout()), nn.CrossEntropyLoss(), (x, y)).prepared()
    assert "Dropout draws" in whether_together(dropping, [trial()], {})
    normed = Task(lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), nn.CrossEntropyLoss(), (x, y)).prepared()
    assert "batch norm" in whether_together(normed, [trial()], {})
