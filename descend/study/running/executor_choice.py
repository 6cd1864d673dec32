"""Which way of running trials is the fastest here, by running a few steps of each."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.launch import cores
from descend.study.running.processes import (
    can_fork,
    can_stack_in_processes,
    divided,
    forked,
    run_in_forks,
    run_in_stacks,
)
from descend.study.running.sequential import run_sequentially
from descend.study.running.stack import Stack, slow_in_silence
from descend.study.running.vmapped import can_run_vmapped, run_vmapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from descend.study.running.trial import Record, Trial
    from descend.study.task import StudyTask

    Run = Callable[[StudyTask, Sequence[Trial], int, dict[str, Any]], Iterator[Record]]

__all__ = ["EXECUTORS", "Executor", "check_name", "choose", "seconds_a_step"]

EXECUTORS = ("auto", "one", "together", "stacks", "processes")
_MOST_AT_ONCE = 64
_MEASURED_STEPS = 12
_EACH = 2  # trials that each process is measured with
_PROCESSES_SECONDS = 0.4  # that processes are measured for, where
_MOST_STEPS = 500  # are enough: the time of one by one may be a guess too low
_ENOUGH_SECONDS = 1.0  # after which a stack is not measured further
_WORTH_SECONDS = 1.0  # of a whole run, below which measuring processes costs more than they could save
_CLEARLY = 1.2  # times as fast another way has to be, so that chance rarely decides


@dataclass(frozen=True)
class Executor:
    """A way of running trials.

    Attributes:
        name: "one", "together", "stacks" or "processes".
        run: From a task and trials that are alike to their records.
        at_once: Trials that it takes at a time.
        reason: Why it was chosen, a sentence.
    """

    name: str
    run: Run
    at_once: int
    reason: str


def check_name(wanted: str) -> None:
    """Raise ConfigurationError unless there is an executor of this name."""
    if wanted not in EXECUTORS:
        close = nearest(wanted, EXECUTORS)
        raise ConfigurationError(f"there is no executor '{wanted}'{close or ';'} there are {', '.join(EXECUTORS)}")


def choose(
    task: StudyTask,
    trials: Sequence[Trial],
    evaluations: int,
    wanted: str | Executor,
    kinds: dict[str, Any],
    *,
    forks: bool = True,
) -> Executor:
    """The executor for trials that are alike; one that is handed in is taken.

    Args:
        task: A prepared task.
        trials: What is to be run.
        evaluations: Looks at the scores of each.
        wanted: A name of `EXECUTORS`, or an executor.
        kinds: Optimizer classes by arm, of arms that have no name for them.
        forks: Whether "auto" may use several processes.

    Raises:
        ConfigurationError: there is no such executor, or these trials cannot run in this way.
    """
    if isinstance(wanted, Executor):
        return wanted
    check_name(wanted)
    one = Executor("one", run_sequentially, 1, "asked for")
    if wanted == "one" or (wanted == "auto" and len(trials) == 1):
        return one
    together = Executor("together", run_vmapped, _MOST_AT_ONCE, "asked for")
    stacks = Executor("stacks", run_in_stacks, _MOST_AT_ONCE * cores(), "asked for")
    processes = Executor("processes", run_in_forks, _MOST_AT_ONCE, "asked for")
    here = forks or wanted != "auto"
    apart = can_fork(task) if here else "the study runs in several processes"
    joint = can_run_vmapped(task, trials, kinds) if wanted != "processes" else None
    both = joint or (can_stack_in_processes(task) if here else apart)
    obstacles = {"together": joint, "stacks": both, "processes": apart}
    ways = {way.name: way for way in (together, stacks, processes)}
    if wanted != "auto":
        if obstacle := obstacles[wanted]:
            raise ConfigurationError(f"these trials cannot run {_HOW[wanted]}: {obstacle}")
        return ways[wanted]
    if len(trials) < 2 * cores():
        obstacles["stacks"] = "there are few trials"
    possible = [one, *(way for name, way in ways.items() if not obstacles[name])]
    if len(possible) == 1:
        return dataclasses.replace(one, reason=joint or "")
    return _fastest(possible, task, trials, kinds, joint)


_HOW = {"together": "together", "stacks": "in a stack for each process", "processes": "in processes"}


def _fastest(
    ways: Sequence[Executor], task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], obstacle: str | None
) -> Executor:
    """The first of the ways that no later one is clearly faster than. Processes divide a time at the best."""
    times: dict[str, float] = {}
    chosen = ways[0]
    for way in ways:
        if (undivided := _UNDIVIDED.get(way.name)) and times[undivided] / cores() * _CLEARLY > times[chosen.name]:
            continue
        if undivided and times[chosen.name] * trials[0].steps * len(trials) < _WORTH_SECONDS:
            continue
        steps = _MEASURED_STEPS
        if way.name in _UNDIVIDED:  # beginning processes takes as long as many small steps, and not always equally long
            each = _EACH if way.name == "processes" else len(divided(trials[: way.at_once])[0])
            wanted = math.ceil(_PROCESSES_SECONDS / times[_UNDIVIDED[way.name]] / each)
            steps = max(steps, min(wanted, trials[0].steps, _MOST_STEPS))
        times[way.name] = seconds_a_step(way, task, trials, kinds, steps)
        if times[way.name] * _CLEARLY < times[chosen.name]:
            chosen = way
    shown = ", ".join(f"{name} {seconds * 1e3:.2g} ms" for name, seconds in times.items())
    because = f"a step of a trial takes {shown}" + (f"; not together: {obstacle}" if obstacle else "")
    return dataclasses.replace(chosen, reason=because)


_UNDIVIDED = {"stacks": "together", "processes": "one"}


def seconds_a_step(
    way: Executor, task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], count: int = _MEASURED_STEPS
) -> float:
    """Of one trial among as many as run at once, without what is made once for a whole run."""
    if way.name == "together":
        return _of_a_stack(task, trials[: way.at_once], count)
    if way.name == "stacks":
        return _of_stacks(task, divided(trials[: way.at_once]), count)
    chosen = trials[: 1 if way.name == "one" else _EACH * cores()]
    seconds: list[float] = []
    for steps in (1, 1 + count):
        short = [dataclasses.replace(trial, steps=steps) for trial in chosen]
        began = time.perf_counter()
        for _ in way.run(task, short, 1, kinds):
            pass
        seconds.append(time.perf_counter() - began)
    return max(seconds[1] - seconds[0], 1e-9) / count / len(chosen)


@slow_in_silence()
def _of_a_stack(task: StudyTask, trials: Sequence[Trial], count: int) -> float:
    """Steps of the stack that would run, so that they are traced where those of the whole run are."""
    stack, steps = Stack(task, trials), min(trials[0].steps, 1 + count)
    stack.step(1)
    began = time.perf_counter()
    for number in range(2, steps + 1):
        stack.step(number)
        if (taken := time.perf_counter() - began) > _ENOUGH_SECONDS:
            return taken / (number - 1) / len(trials)
    return (time.perf_counter() - began) / max(steps - 1, 1) / len(trials)


def _of_stacks(task: StudyTask, parts: Sequence[Sequence[Trial]], count: int) -> float:
    """The same of stacks in as many processes at the same time."""
    Stack(task, parts[0]).trace()

    def work(part: Sequence[Trial]) -> Callable[[], Iterator[bytes]]:
        return lambda: iter([f"{_of_a_stack(task, part, count) * len(part)}".encode()])

    slowest = max((float(said) for said in forked([work(part) for part in parts])), default=math.inf)
    return slowest / sum(len(part) for part in parts)
