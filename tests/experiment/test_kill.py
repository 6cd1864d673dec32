"""A run that is killed anywhere, as often as one likes, ends in the same bytes."""

import functools
import importlib
import json
import os
import random
import signal
import sys
import time

import pytest
import torch
from data.torch_sets import Augmented
from torch import nn

import descend
from descend.runtime import verify

STEPS = 40


class Mortal(nn.Module):
    """Kills its process in the forward pass with the given number, be it of training or of validation."""

    def __init__(self, dies_at):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.body = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))
        self.left = dies_at

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.dropout(self.body(x), 0.1, self.training)


class Log(descend.Callback):
    def __init__(self, path):
        self.path = path

    def after_step(self, step):
        with self.path.open("a") as file:
            file.write(json.dumps([step.step, step.loss.hex(), step.batch.ids.tolist()]) + "\n")


def run(folder, optimizer, dies_at=-1, workers=0):
    descend.fit(
        Mortal(dies_at),
        "cross_entropy",
        Augmented(23),
        valid=Augmented(9),
        optimizer=optimizer,
        batch_size=6,
        micro_batch_size=3,
        batch_norm_group_size=3,
        workers=workers,
        stop=descend.Steps(STEPS),
        callbacks=[descend.Checkpoint(every_steps=3, keep=2), Log(folder.with_suffix(".log"))],
        run_dir=folder,
        resume=True,
    )


def in_a_child(function) -> int:
    """Fork, so that a death costs no import; the exit status as the parent sees it. The parent must not train itself:
    autograd's threads do not survive a fork.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # closed with the process
            torch.set_num_threads(1)  # a fork has none of the threads that its parent's sums wait for
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files(folder):
    newest = folder / "checkpoints" / f"step-{STEPS}"
    names = ("weights.safetensors", "training/optimizer.safetensors")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(newest / name).read_bytes() for name in names], [
        {key: value for key, value in row.items() if key != "seconds"} for row in rows if row["mode"] != "restart"
    ]


def steps(folder):
    """What each step saw; a step that was made again must have seen the same."""
    seen: dict[int, object] = {}
    for line in folder.with_suffix(".log").read_text().splitlines():
        step, *rest = json.loads(line)
        assert seen.setdefault(step, rest) == rest, f"step {step} was not repeated as it was"
    return seen


OPTIMIZERS = {
    "our Adam": functools.partial(descend.optim.Adam, lr=lambda step: 0.01 / (1 + step)),
    "LAMB": functools.partial(descend.optim.LAMB, lr=0.01, weight_decay=0.1),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "SGLD": lambda named: descend.optim.SGLD(named, lr=0.001, seed=4),
}


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.*normalizes over", "ignore:.*fork")
@pytest.mark.parametrize(
    ("optimizer", "workers", "attempts"),
    [
        ("Adam", 0, 1),
        pytest.param("Adam", 0, 10, marks=pytest.mark.slow(seconds=10)),
        pytest.param("momentum", 0, 5, marks=pytest.mark.slow),
        pytest.param("SGLD", 0, 5, marks=pytest.mark.slow),
        pytest.param("our Adam", 0, 5, marks=pytest.mark.slow),
        pytest.param("LAMB", 0, 5, marks=pytest.mark.slow),
        pytest.param("SGLD", 2, 1, marks=pytest.mark.slow(seconds=20)),
    ],
)
def test_killed_at_random_points_and_continued(tmp_path, optimizer, workers, attempts):
    rule = OPTIMIZERS[optimizer]
    importlib.import_module("torch._dynamo")  # here, so that no child needs seconds for what optimizers import
    importlib.import_module("descend.experiment.fit")
    assert in_a_child(lambda: run(tmp_path / "whole", rule)) == 0
    draw = random.Random(7)
    for attempt in range(attempts):
        folder, deaths = tmp_path / f"killed{attempt}", 0
        for _ in range(3):
            moment = draw.randrange(1, 60)
            deaths += in_a_child(functools.partial(run, folder, rule, moment, workers)) == -signal.SIGKILL
        assert deaths
        assert in_a_child(functools.partial(run, folder, rule, -1, workers)) == 0
        assert files(folder) == files(tmp_path / "whole")
        assert steps(folder) == steps(tmp_path / "whole")


class Padded(nn.Module):
    """Large enough for a save to take a while."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.body = nn.Sequential(nn.Linear(3, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 2))

    def forward(self, x):
        return self.body(x)


def save_all_the_time(folder, asynchronous, last):
    draw = torch.Generator().manual_seed(0)
    descend.fit(
        Padded(),
        "cross_entropy",
        (torch.randn(24, 3, generator=draw), torch.arange(24) % 2),
        optimizer=OPTIMIZERS["Adam"],
        batch_size=6,
        stop=descend.Steps(last),
        callbacks=[descend.Checkpoint(every_steps=1, keep=2, asynchronous=asynchronous)],
        run_dir=folder,
        resume=True,
    )


def killed_while_saving(function, folder, newest, seconds):
    """Run it in a child and kill that some time after its first save; the exit status."""
    child = os.fork()
    if child == 0:
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # closed with the process
            torch.set_num_threads(1)  # a fork has none of the threads that its parent's sums wait for
            function()
        finally:
            os._exit(0)
    while max(saved(folder), default=0) <= newest:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def saved(folder):
    return [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")]


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow(seconds=20))])
def test_killed_at_random_instants_while_saving(tmp_path, kills, asynchronous):
    """Whatever is there under its name is whole, the newest never goes back, and the end is the end without kills."""
    importlib.import_module("torch._dynamo")
    importlib.import_module("descend.experiment.fit")
    draw, newest, folder, died = random.Random(kills), 0, tmp_path / "run", 0
    for _ in range(kills):
        run_on = functools.partial(save_all_the_time, folder, asynchronous, 100_000)
        died += killed_while_saving(run_on, folder, newest, draw.uniform(0, 0.05)) == -signal.SIGKILL
        for step in saved(folder):
            verify(folder / "checkpoints" / f"step-{step}")
        assert max(saved(folder)) > newest
        newest = max(saved(folder))
    assert died == kills
    last = newest + 3
    assert in_a_child(lambda: save_all_the_time(folder, asynchronous, last)) == 0
    assert in_a_child(lambda: save_all_the_time(tmp_path / "whole", False, last)) == 0
    ours, theirs = (path / "checkpoints" / f"step-{last}" for path in (folder, tmp_path / "whole"))
    for name in ("weights.safetensors", "training/optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert not list((folder / "checkpoints").glob(".*"))
    assert len(list((folder / "checkpoints").glob("step-*"))) <= 4  # the newest two, and what kills left unlisted
