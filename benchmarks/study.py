"""Trials at once, one by one, and by an Optuna loop where Optuna is installed: trials a second, side by side.

python benchmarks/study.py      an MLP 64-32-10 at batch 32 with 64 trials; a larger MLP and a small convolution net, 32

Every way runs the same trials: the same initial weights, order of samples, rates and number of steps, one thread,
scores before and after. The Optuna loop trains in plain torch, as its users write it. Ways take turns; the fastest
round of each counts, since whatever else runs on the machine only adds. Everything that a study pays is in the time:
weights, orders of samples, schedules, scores and records.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

import descend
from descend.study.running.one import run_one_by_one
from descend.study.running.together import run_together
from descend.study.running.trial import Trial
from descend.study.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """What is trained."""

    name: str
    task: Task
    trials: int
    batch_size: int
    steps: int
    alone: int  # trials that the slow ways run, since each takes its time whatever their number


def digits(role: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The bundled digits of a role."""
    reader = descend.open_readers(descend.zoo.digits())[role]
    fields = reader.read(np.arange(len(reader)))
    return torch.as_tensor(fields["samples"]).reshape(-1, *shape), torch.as_tensor(fields["labels"]).argmax(1)


def task(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> Task:
    """A task on the digits."""
    return Task(model, nn.CrossEntropyLoss(), digits("train", shape), digits("validate", shape)).prepared()


def mlp(width: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def convolutions() -> nn.Module:
    """Two convolutions and a layer."""
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


CASES = [
    Case("MLP 64-32-10", task(lambda: mlp(32), (64,)), 64, 32, 200, 4),
    Case("MLP 64-256-10", task(lambda: mlp(256), (64,)), 32, 32, 100, 4),
    Case("convolutions 8-16", task(convolutions, (1, 8, 8)), 32, 32, 60, 4),
]


def trials(case: Case) -> list[Trial]:
    """Rates from 0.001 to 0.3."""
    rates = np.geomspace(1e-3, 0.3, case.trials)
    settings = {"optimizer": "SGD", "momentum": 0.9, "schedule": "constant"}
    return [
        Trial("sgd", case.batch_size, case.steps, 0, "search", i, 0, i, {**settings, "lr": float(rate)})
        for i, rate in enumerate(rates)
    ]


def one_by_one(case: Case) -> int:
    """Through descend.fit."""
    return len(list(run_one_by_one(case.task, trials(case)[: case.alone], 1)))


def together(case: Case) -> int:
    """As one stack."""
    return len(list(run_together(case.task, trials(case), 1)))


def optuna_loop(case: Case) -> int:
    """As users of Optuna write it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    x, y = case.task.train
    x_valid, y_valid = case.task.validation

    def objective(trial: optuna.Trial) -> float:
        module = case.task.module(trial.number)
        optimizer = torch.optim.SGD(
            module.parameters(), lr=trial.suggest_float("lr", 1e-3, 0.3, log=True), momentum=0.9
        )
        loss, step = nn.CrossEntropyLoss(), 0
        while step < case.steps:
            for rows in torch.randperm(len(x)).split(case.batch_size):
                optimizer.zero_grad()
                loss(module(x[rows]), y[rows]).backward()
                optimizer.step()
                step += 1
                if step == case.steps:
                    break
        with torch.no_grad():
            return float((module(x_valid).argmax(1) == y_valid).double().mean())

    sampler = optuna.samplers.RandomSampler(seed=0)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=case.alone)
    return case.alone


def seconds_a_trial(way: Callable[[Case], int], case: Case) -> float:
    """Of one round."""
    began = time.perf_counter()
    count = way(case)
    return (time.perf_counter() - began) / count


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Case], int]] = {"one by one": one_by_one, "together": together}
    try:
        import optuna  # noqa: F401  # to see whether it is there

        ways["optuna"] = optuna_loop
    except ImportError:
        print("Optuna is not installed: its loop is left out")
    for case in CASES:
        for way in ways.values():
            way(case)  # what is made once does not count
        times = {name: min(seconds_a_trial(way, case) for _ in range(rounds)) for name, way in ways.items()}
        shown = ", ".join(f"{name} {1 / seconds:.1f}" for name, seconds in times.items())
        ratio = times["one by one"] / times["together"]
        print(
            f"{case.name}, batch {case.batch_size}, {case.steps} steps: trials a second {shown}; together {ratio:.1f} x"
        )


if __name__ == "__main__":
    main()
