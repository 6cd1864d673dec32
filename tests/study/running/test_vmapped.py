"""Trials at once are the trials one by one."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.data import order
from descend.errors import Stopped
from descend.optim.rules import RULES
from descend.study.running import scores as scoring
from descend.study.running import stack
from descend.study.running import vmapped as together
from descend.study.running.optimizer import make
from descend.study.running.sequential import run_sequentially
from descend.study.running.traced import traced
from descend.study.running.vmapped import can_run_vmapped, run_vmapped

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
        trial(i, steps=5, batch_size=512, **{k: v[i] if isinstance(v, list) else v for k, v in settings.items()})
        for i in range(3)
    ]


@pytest.fixture
def traced_early(monkeypatch):
    """Three steps of one batch size are enough for a trace, so that short runs have traced and untraced steps."""
    monkeypatch.setattr(stack, "_WORTH_A_TRACE", 3)


@pytest.mark.parametrize("name", ARMS)
def test_together_is_one_by_one(name):
    """In float64 and over more than an epoch, whose last batch is smaller than the others."""
    trials = three(ARMS[name])
    assert can_run_vmapped(TASK, trials, {}) is None
    for alone, among in zip(run_sequentially(TASK, trials, 5), run_vmapped(TASK, trials, 5), strict=True):
        assert among.status == alone.status == "done"
        assert among.steps == alone.steps
        for split in ("train", "validation"):
            assert among.scores[split]["loss"] == pytest.approx(alone.scores[split]["loss"], rel=1e-7)
            assert among.scores[split]["accuracy"] == alone.scores[split]["accuracy"]


def test_a_trial_gives_the_same_bits_again_and_beside_one_that_diverges():
    wild = trial(1, lr=1e200)
    first = list(run_vmapped(TASK, [trial(0), wild], 5))
    again = list(run_vmapped(TASK, [trial(0), wild], 5))
    assert [record.scores for record in first] == [record.scores for record in again]
    (alone,) = run_sequentially(TASK, [wild], 5)
    assert (first[1].status, first[1].failed_at) == (alone.status, alone.failed_at) == ("diverged", alone.failed_at)
    assert first[0].status == "done"


def test_single_precision_agrees_to_single_precision():
    task = mlp().prepared()
    trials = three({"optimizer": "Adam", "lr": [1e-3, 3e-3, 1e-2]})
    for alone, among in zip(run_sequentially(task, trials, 2), run_vmapped(task, trials, 2), strict=True):
        assert among.scores["validation"]["loss"] == pytest.approx(alone.scores["validation"]["loss"], rel=1e-4)


class Tied(nn.Module):
    """The same weight twice, a frozen layer, a constant, a number, and a weight that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.second.weight = nn.Parameter(torch.eye(16) + 0.1 * torch.randn(16, 16))
        self.again = nn.Linear(16, 16)
        self.again.weight = self.second.weight
        self.first.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.linspace(-1, 1, 16))

    def forward(self, x):
        return self.last(torch.relu(self.again(torch.relu(self.second(self.first(x)) + self.shift)))) * self.scale


def normed():
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=0.3), nn.ReLU(), nn.Linear(16, 10))


def dropping(activation=nn.SELU):
    first, second = nn.Dropout(0.2), nn.AlphaDropout(0.1)
    return nn.Sequential(nn.Linear(64, 16), first, activation(), second, nn.Linear(16, 16), first, nn.Linear(16, 10))


def convolutions():
    rows = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3)]
    return nn.Sequential(*rows, nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 10))


MODULES = {"tied": Tied, "batch norm": normed, "dropout": dropping, "convolutions": convolutions}


def of(model):
    """A task of double precision on the digits."""
    return dataclasses.replace(TASK, model=lambda: model().double())


def compared(task, trials, rel=1e-7):
    assert can_run_vmapped(task, trials, {}) is None
    for alone, among in zip(run_sequentially(task, trials, 3), run_vmapped(task, trials, 3), strict=True):
        assert among.status == alone.status
        for split in ("train", "validation"):
            assert among.scores[split]["loss"] == pytest.approx(alone.scores[split]["loss"], rel=rel)


ALONE = {"SGLD", "Muon", "SOAP", "Adafactor", "GroupAdaGrad"}  # noise, and rules that look at rows or matrices


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({kind.__name__: kind for kind in RULES.values()}))
@pytest.mark.usefixtures("traced_early")
def test_every_rule_over_steps_that_are_traced(name):
    rate = RULES[name.lower()].default_lr
    trials = [
        dataclasses.replace(one, steps=8)
        for one in three({"optimizer": name, "lr": [rate, rate / 2, rate / 4], "weight_decay": [0.0, 1e-3, 1e-2]})
    ]
    if name in ALONE:
        assert can_run_vmapped(TASK, trials, {}) is not None
    else:
        compared(TASK, trials)


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_a_state_and_draws_of_their_own(name):
    """Statistics and masks are those of a trial alone: the masks the same bits, the statistics up to rounding."""
    compared(of(MODULES[name]), three({"momentum": 0.9, "lr": [0.01, 0.02, 0.05], "weight_decay": 1e-3}))


def test_the_weights_that_are_averaged_are_those_that_are_looked_at():
    trials = three({"optimizer": "ScheduleFreeSGD"})
    compared(TASK, trials)
    (record,) = run_sequentially(TASK, trials[:1], 1)
    module = TASK.module(trials[0].seed)
    optimizer = make(trials[0].configuration, trials[0].steps, module)(list(module.named_parameters()))
    x, y = TASK.train
    for epoch, place in ((step // 3, step % 3) for step in range(5)):
        drawn = torch.from_numpy(order(trials[0].seed, epoch, np.arange(len(x)), len(x)))
        rows = drawn[512 * place : 512 * place + 512]
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    x, y = TASK.validation
    with optimizer.averaged(), torch.no_grad():
        loss = nn.functional.cross_entropy(module(x), y)
    assert record.scores["validation"]["loss"][-1] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.slow), "dropout"])
@pytest.mark.usefixtures("traced_early")
def test_a_trial_has_the_same_bits_in_a_stack_of_any_width(name):
    """So a study may divide a stack. Kernels of SELU and its like round the last elements of a tensor otherwise."""
    model = {"plain": lambda: mlp().model(), "dropout": lambda: dropping(nn.Tanh)}[name]
    task = dataclasses.replace(mlp().prepared(), model=model)
    trials = [trial(i, lr=0.01 * (i + 1), momentum=0.9, steps=8) for i in range(7)]
    wide = list(run_vmapped(task, trials, 2))
    for some in (trials[:1], trials[2:4], trials[3:6]):
        for record in run_vmapped(task, some, 2):
            (other,) = (one for one in wide if one.trial == record.trial)
            assert record.scores == other.scores


@pytest.mark.slow
@pytest.mark.parametrize("model", [normed, dropping, Tied], ids=["batch norm", "dropout", "tied"])
@pytest.mark.usefixtures("traced_early")
def test_a_trace_gives_what_it_was_traced_from(model):
    """Long enough for a trace, and over the smaller last batch, whose steps are few and are not traced."""
    trials = three({"optimizer": "Adam", "lr": [1e-3, 3e-3, 1e-2]})
    compared(of(model), [dataclasses.replace(one, steps=8) for one in trials], rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("traced_early")
def test_a_trace_serves_all_stacks_of_its_form_and_no_other(monkeypatch):
    """Other learning rates, seeds and decays are its inputs; a momentum that all trials share is a constant in it."""
    made = []
    for module in (stack, scoring):
        monkeypatch.setattr(module, "traced", lambda *given, **options: made.append(1) or traced(*given, **options))
    task = of(dropping)

    def trials(first, **settings):
        own = {"momentum": 0.9, "weight_decay": 1e-3, **settings}
        listed = [trial(first + i, lr=0.01 * (first + i + 1), **own) for i in range(3)]
        return [dataclasses.replace(one, steps=8, batch_size=512) for one in listed]

    def scores(task, trials):
        return [record.scores for record in run_vmapped(task, trials, 3)]

    scores(task, trials(0))
    known = len(made)
    assert known == 4  # a step, and looks at 128 samples and at what is left of training and validation samples
    again = scores(task, trials(5, weight_decay=1e-2))
    assert len(made) == known
    assert again == scores(of(dropping), trials(5, weight_decay=1e-2))
    compared(task, trials(2, momentum=0.5), rel=1e-6)
    compared(task, trials(2, optimizer="Adam", momentum=0.0), rel=1e-6)


def test_what_cannot_run_together_is_named():
    assert "another library" in can_run_vmapped(TASK, [trial(optimizer="torch.optim:SGD")], {})
    assert "one tensor at a time" in can_run_vmapped(TASK, [trial(optimizer="Muon")] * 2, {})
    assert "not a number" in can_run_vmapped(TASK, [trial(), trial(momentum=0.9)], {})
    for model, said in (
        (Drawing, "random operation"),
        (Counting, "something else than one module"),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10, momentum=None)), "a stack of these modules fails"),
        (Failing, "mine"),
        (Throwing, "draws random numbers"),
    ):
        task = dataclasses.replace(mlp().prepared(), model=model)
        assert said in can_run_vmapped(task, [trial(0), trial(1)], {})


class Drawing(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Counting(Drawing):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        return nn.functional.linear(x, self.weight, self.bias) * self.calls


class Throwing(Drawing):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) * random.random()


class Failing(Drawing):
    def forward(self, x):
        raise ValueError("mine")


def test_a_request_for_an_end_is_no_reason_against_a_stack(monkeypatch):
    """It would be kept as the choice of an executor, and the study would be slow for ever."""

    def stopped(*_):
        raise Stopped("Ctrl-C stopped it")

    monkeypatch.setattr(together, "run_vmapped", stopped)
    with pytest.raises(Stopped):
        can_run_vmapped(mlp().prepared(), [trial(0), trial(1)], {})
