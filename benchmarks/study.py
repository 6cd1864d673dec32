"""Trials at once, as stacks in processes, one by one, and by an Optuna loop where it is installed: trials a second.

python benchmarks/study.py [--rounds N] [--case NUMBER] [--only WAY]    MLPs and a small convolution net at batch 32, 64
                                                                        trials each, and what recording a trial costs
python benchmarks/study.py --choice [--rounds N] [--case NUMBER] [--network WORD]
                                                                        whether `auto` chooses the fastest way, over
                                                                        other networks, lengths and optimizers

Every way runs the same trials: the same initial weights, rates and number of steps, one thread a process, scores before
and after. The Optuna loop trains in plain torch, as its users write it, and scores the validation samples once; it uses
all processors, by `n_jobs` (threads) and by processes of its own. Ways
take turns; medians count, with the quarter to three quarters of the rounds. Weights, orders of samples, schedules,
scores and records are in the time of every way; what a process makes once, the traces of stacks, is not. "whole" is
what `--executor auto` takes: trying a stack, tracing, and running what is chosen; "whole, first" is the same as the
first call of a new process.

`--choice` times every way that can run a case from the trials to their records, making traces included: one
stack and stacks whole, the ways one by one by a few trials, times their number. "chosen" is the way that `auto` takes
over the fastest one; "whole" is choosing and running over it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

import descend
from descend.launch import cores
from descend.study import Arm, Study
from descend.study.running.executor_choice import choose
from descend.study.running.plan import pending
from descend.study.running.processes import forked, run_in_forks, run_in_stacks
from descend.study.running.sequential import run_sequentially
from descend.study.running.trial import Record, Trial
from descend.study.running.trial_store import StudyDirectory
from descend.study.running.vmapped import run_vmapped
from descend.study.task import StudyTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Case:
    """What is trained."""

    name: str
    task: StudyTask
    trials: int
    batch_size: int
    steps: int
    alone: int  # trials that the slow ways run, since each takes its time whatever their number
    optimizer: str = "SGD"


def digits(role: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The bundled digits of a role."""
    reader = descend.open_readers(descend.zoo.digits())[role]
    fields = reader.read(np.arange(len(reader)))
    return torch.as_tensor(fields["samples"]).reshape(-1, *shape), torch.as_tensor(fields["labels"]).argmax(1)


def task(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> StudyTask:
    """A task on the digits."""
    return StudyTask(model, nn.CrossEntropyLoss(), digits("train", shape), digits("validate", shape)).prepared()


def mlp(*widths: int) -> nn.Module:
    """Hidden layers of some widths."""
    layers: list[nn.Module] = []
    for given, width in itertools.pairwise((64, *widths)):
        layers += [nn.Linear(given, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def convolutions() -> nn.Module:
    """Two convolutions and a layer."""
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


CASES = [
    Case("MLP 64-32-10", task(lambda: mlp(32), (64,)), 64, 32, 1000, 4),
    Case("MLP 64-32-10", task(lambda: mlp(32), (64,)), 64, 32, 200, 4),
    Case("MLP 64-256-10", task(lambda: mlp(256), (64,)), 64, 32, 400, 4),
    Case("MLP 64-256-256-10", task(lambda: mlp(256, 256), (64,)), 64, 32, 200, 4),
    Case("convolutions 8-16", task(convolutions, (1, 8, 8)), 64, 32, 200, 4),
]


def trials(case: Case) -> list[Trial]:
    """Rates from 0.001 to 0.3."""
    rates = np.geomspace(1e-3, 0.3, case.trials)
    settings: dict[str, object] = {"optimizer": case.optimizer, "schedule": "constant"}
    if case.optimizer == "SGD":
        settings["momentum"] = 0.9
    else:
        rates /= 10
    return [
        Trial("sgd", case.batch_size, case.steps, 0, "search", i, 0, i, {**settings, "lr": float(rate)})
        for i, rate in enumerate(rates)
    ]


class Attention(nn.Module):
    """Two encoder layers over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, rows, columns) to scores of classes."""
        return self.head(self.layers(self.embedding(x)).mean(1))


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, rows, columns) to scores of classes."""
        return self.head(self.recurrent(x)[0][:, -1])


def lenet() -> nn.Module:
    """Two convolutions and three layers, for images of 28 by 28."""
    convolved = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    layers = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolved, nn.MaxPool2d(2), nn.Flatten(), *layers)


def enlarged() -> StudyTask:
    """LeNet on the digits, enlarged to 28 by 28."""

    def larger(role: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = digits(role, (1, 8, 8))
        return nn.functional.interpolate(x, 28), y

    return StudyTask(lenet, nn.CrossEntropyLoss(), larger("train"), larger("validate")).prepared()


def choices() -> list[Case]:
    """What `--choice` times: all combinations would take hours, so that the lengths vary for the quick networks."""
    networks = {
        "MLP 64-8-10": task(lambda: mlp(8), (64,)),
        "MLP 64-512-512-10": task(lambda: mlp(512, 512), (64,)),
        "LeNet": enlarged(),
        "transformer": task(Attention, (8, 8)),
        "LSTM": task(Recurrent, (8, 8)),
    }
    lengths = {name: [(50, 16)] for name in networks}
    lengths["MLP 64-8-10"] = [(50, 16), (50, 64), (200, 16), (200, 64), (1000, 16), (1000, 64)]
    lengths["MLP 64-512-512-10"] += [(200, 16)]
    lengths["transformer"] += [(50, 64), (200, 16)]
    lengths["LSTM"] += [(50, 64), (200, 16), (200, 64)]
    cases = [Case(name, networks[name], count, 32, steps, 4) for name, each in lengths.items() for steps, count in each]
    others = [("Adam", 200), ("LAMB", 200), ("Lion", 200), ("Muon", 50)]
    small = networks["MLP 64-8-10"]
    return [*cases, *(Case("MLP 64-8-10", small, 16, 32, steps, 4, optimizer) for optimizer, steps in others)]


def seconds_of_each(case: Case) -> tuple[dict[str, float], float, str]:
    """Of all trials by every way that can run them; of choosing and running, and what was chosen."""
    every = trials(case)
    seconds: dict[str, float] = {}
    for name in ("one", "processes", "together", "stacks"):
        some = every[: {"one": case.alone, "processes": case.alone * cores()}.get(name, len(every))]
        fresh = dataclasses.replace(case.task)
        try:
            way = choose(fresh, some, 1, name, {})
        except descend.DescendError:  # it cannot run these
            continue
        began = time.perf_counter()
        count = len(list(way.run(fresh, some, 1, {})))
        seconds[name] = (time.perf_counter() - began) / count * len(every)
    fresh = dataclasses.replace(case.task)
    began = time.perf_counter()
    way = choose(fresh, every, 1, "auto", {})
    list(way.run(fresh, every, 1, {}))
    return seconds, time.perf_counter() - began, way.name


def print_choice(case: Case, rounds: int) -> None:
    """A line of how long each way takes, and of the chosen one over the fastest."""
    seconds_of_each(case)  # what is made once does not count
    each = [seconds_of_each(case) for _ in range(rounds)]
    chosen = [name for *_, name in each]
    medians = {name: statistics.median(seconds[name] for seconds, *_ in each) for name in each[0][0]}
    best = min(medians.values())
    whole = statistics.median(seconds for _, seconds, _ in each)
    shown = "  ".join(f"{name} {seconds:.2f}" for name, seconds in medians.items())
    over = max(medians[name] for name in chosen) / best
    title = f"{case.name}, {case.optimizer}, {case.steps} steps, {case.trials} trials"
    print(f"{title:<52}{shown:<58}{'/'.join(dict.fromkeys(chosen)):<11}{over:6.2f}{whole / best:7.2f}", flush=True)


def one_by_one(case: Case) -> int:
    """Through descend.fit."""
    return len(list(run_sequentially(case.task, trials(case)[: case.alone], 1)))


def together(case: Case) -> int:
    """As one stack."""
    return len(list(run_vmapped(case.task, trials(case), 1)))


def in_stacks(case: Case) -> int:
    """As a stack in each of as many processes as there are processors."""
    return len(list(run_in_stacks(case.task, trials(case), 1)))


def in_processes(case: Case) -> int:
    """One by one in as many processes as there are processors."""
    return len(list(run_in_forks(case.task, trials(case)[: case.alone * cores()], 1)))


def whole(case: Case) -> int:
    """With choosing and tracing, as the first arm of a study."""
    fresh = dataclasses.replace(case.task)  # without traces
    way = choose(fresh, trials(case), 1, "auto", {})
    return len(list(way.run(fresh, trials(case), 1, {})))


def whole_first(case: Case) -> float:
    """Seconds of it in a new process, without those of starting Python and importing."""
    command = [sys.executable, __file__, "--case", str(CASES.index(case)), "--first"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def optuna_threads(case: Case) -> int:
    """As users of Optuna write it, with `n_jobs` as many as there are processors."""
    return optuna_loop(case, case.alone * cores(), cores())


def optuna_processes(case: Case) -> int:
    """A loop in each of as many processes as there are processors."""

    def work() -> Iterator[bytes]:
        yield str(optuna_loop(case, case.alone)).encode()

    return sum(int(said) for said in forked([work] * cores()))


def optuna_loop(case: Case, trials: int, jobs: int = 1) -> int:
    """Trials in plain torch."""
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
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=trials, n_jobs=jobs)
    return trials


def seconds_a_trial(way: Callable[[Case], float], case: Case) -> float:
    """Of one round."""
    if way is whole_first:
        return whole_first(case) / case.trials
    began = time.perf_counter()
    count = way(case)
    return (time.perf_counter() - began) / count


def milliseconds_a_record() -> float:
    """From a trial that ended to its line in the directory, its claim included."""
    arm = Arm("SGD", {}, {"lr": 0.1})
    study = Study(workload="t.py:t", batch_sizes=(32,), steps=(100,), arms={"a": arm}, trials=512)
    ended = pending(study, {})
    curve = {"validation": {"accuracy": [0.5] * 11, "loss": [0.5] * 11}, "train": {"loss": [0.5] * 11}}
    with tempfile.TemporaryDirectory() as place, StudyDirectory(place, study) as directory:
        began = time.perf_counter()
        for one in directory.claim(ended, len(ended)):
            directory.record(Record(one, "done", tuple(range(11)), curve))
        return (time.perf_counter() - began) / len(ended) * 1e3


def main() -> None:
    """Print a line for each case, and one for records."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--only", action="append", help="this way, and others that are named so too")
    parser.add_argument("--first", action="store_true", help="print the seconds of one whole call, and nothing else")
    parser.add_argument("--choice", action="store_true", help="every way beside the chosen one, over other networks")
    parser.add_argument("--network", help="with --choice: those whose name has this word")
    given = parser.parse_args()
    rounds = given.rounds
    torch.set_num_threads(1)
    if given.choice:
        print(f"{'seconds of all trials':<110}{'chosen':<11}{'chosen':>6}{'whole':>7}")
        for number, case in enumerate(choices()):
            if given.case in (None, number) and (given.network or "") in case.name:
                print_choice(case, rounds)
        return
    if given.first:
        print(seconds_a_trial(whole, CASES[given.case]) * CASES[given.case].trials)
        return
    ways: dict[str, Callable[[Case], float]] = {
        "one": one_by_one,
        "together": together,
        "stacks": in_stacks,
        "processes": in_processes,
    }
    if cores() == 1:
        del ways["stacks"]
        del ways["processes"]
    ways |= {"whole": whole, "whole, first": whole_first}
    if importlib.util.find_spec("optuna"):
        importlib.import_module("optuna")  # which the processes of its loop would each do
        ways["optuna, n_jobs"] = optuna_threads
        ways["optuna, processes"] = optuna_processes
    else:
        print("Optuna is not installed: its loop is left out")
    ways = {name: way for name, way in ways.items() if given.only is None or name in given.only}
    for case in CASES if given.case is None else [CASES[given.case]]:
        for way in ways.values():
            way(case)  # what is made once does not count
        rounds_of = [{name: seconds_a_trial(way, case) for name, way in ways.items()} for _ in range(rounds)]
        chosen = choose(case.task, trials(case), 1, "auto", {}).name
        against = chosen if chosen in ways else next(iter(ways))
        print(f"\n{case.name}, batch {case.batch_size}, {case.steps} steps, {case.trials} trials; chosen {chosen}")
        for name in ways:
            low, middle, high = statistics.quantiles([1 / times[name] for times in rounds_of], n=4)
            ratio = statistics.median(times[name] / times[against] for times in rounds_of)
            print(
                f"  {name:<18}{middle:8.1f} trials a second  ({low:.1f} to {high:.1f})   {against} {ratio:6.2f} x",
                flush=True,
            )
    print(f"\nrecording a trial: {milliseconds_a_record():.2f} ms")


if __name__ == "__main__":
    main()
