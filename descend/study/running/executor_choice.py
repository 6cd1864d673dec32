"""Chooses the fastest executor for trials on this machine, by timing a few steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, nearest
from descend.launch import cores
from descend.study.running.processes import (
    can_fork,
    can_stack_in_processes,
    divided,
    run_in_forks,
    run_in_stacks,
)
from descend.study.running.sequential import run_sequentially
from descend.study.running.stack import Stack, slow_in_silence
from descend.study.running.trial import RETRIED
from descend.study.running.trial_ranks import run_on_ranks
from descend.study.running.trial_setup import TrialSetup
from descend.study.running.vmapped import can_run_vmapped, run_vmapped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from descend.study.running.trial import Record, Trial
    from descend.study.task import StudyTask

    Run = Callable[[StudyTask, Sequence[Trial], int, dict[str, Any]], Iterator[Record]]

__all__ = ["EXECUTORS", "Executor", "check_name", "choose", "seconds_a_step"]

EXECUTORS = ("auto", "one", "together", "stacks", "processes", "ray")
_MOST_AT_ONCE = 64
_MEASURED_STEPS = 12
_EACH = 2  # trials that each process is measured with
_PROCESSES_SECONDS = 0.4  # for which processes are measured,
_MOST_STEPS = 500  # with at most so many steps
_ENOUGH_SECONDS = 0.1  # after which a stack is not measured further
_WORTH_SECONDS = 1.0  # of a whole run; below it measuring processes costs more than they could save
_CLEARLY = 1.1  # times as fast as a simpler one an executor must be
_SHARED = 1.15  # times as long a step of a stack takes beside those of other processes, which share caches and memory
_FORKS_SECONDS = 0.1  # of a whole run, below which it is not worth a fork
_ATTEMPTS = 3  # at a time; noise can make the shorter of two runs take longer


@dataclass(frozen=True)
class Executor:
    """A way of running trials.

    Attributes:
        name: "one" (sequentially), "together" (vmap), "stacks" (vmap in several processes) or "processes".
        run: From a task and similar trials to their records.
        at_once: Trials that it runs at a time.
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
    setup: TrialSetup | None = None,
) -> Executor:
    """The executor for similar trials.

    Args:
        task: A prepared task.
        trials: The trials to run.
        evaluations: Evaluations of each.
        wanted: A name of `EXECUTORS` but "ray", or an executor, which is returned.
        kinds: Optimizer classes by arm, of arms that name no registered optimizer.
        forks: Whether "auto" may use several processes.
        setup: How each trial is run; None is one process of one thread that saves nothing.

    Raises:
        ConfigurationError: there is no such executor, or it cannot run these trials.
    """
    if isinstance(wanted, Executor):
        return wanted
    check_name(wanted)
    setup = setup or TrialSetup()
    if setup.needs.ranks > 1:
        return _on_ranks(setup, wanted)
    one = Executor("one", functools.partial(run_sequentially, checkpoints=setup.checkpoints), 1, "asked for")
    if wanted == "one" or (wanted == "auto" and len(trials) == 1):
        return one
    together = Executor("together", run_vmapped, _MOST_AT_ONCE, "asked for")
    stacks = Executor("stacks", run_in_stacks, _MOST_AT_ONCE * cores(), "asked for")
    processes = Executor("processes", functools.partial(run_in_forks, setup=setup), _MOST_AT_ONCE, "asked for")
    here = forks or wanted != "auto"
    apart = can_fork(task) if here else "the study runs in several processes"
    joint = (_alone(setup) or can_run_vmapped(task, trials, kinds)) if wanted != "processes" else None
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


def _on_ranks(setup: TrialSetup, wanted: str) -> Executor:
    """The executor of trials that have several ranks each."""
    if wanted not in ("auto", "one"):
        raise ConfigurationError(
            f"these trials cannot run {_HOW[wanted]}: each has {setup.needs.ranks} ranks on this machine; say "
            "--executor one, or ray"
        )
    return Executor("one", functools.partial(run_on_ranks, setup=setup), 1, "each trial has several ranks")


def _alone(setup: TrialSetup) -> str | None:
    """Why trials of this setup cannot be stacked; None if they can."""
    if setup.checkpoints is not None:
        return "each trial is saved by itself (checkpoint_every)"
    return "a stack shares the processors, and each trial needs several" if setup.needs.cores > 1 else None


_HOW = {"together": "together", "stacks": "in a stack for each process", "processes": "in processes"}


def _fastest(
    ways: Sequence[Executor], task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], obstacle: str | None
) -> Executor:
    """The executor whose steps are the shortest.

    Stacks in several processes are timed by one of them alone, in this process and as wide as it will be, since a fork
    that runs for a few steps is slow for reasons that have nothing to do with them. One stack shares its work out no
    better than they do, so it is timed only where they cannot run. Processes are timed as they run, and only where they
    could be faster and the whole run is long enough to pay for it.

    An executor that cannot be measured, since a trial ended as an error or the times are all noise, has no time: it is
    neither faster nor slower than another.
    """
    by_name = {way.name: way for way in ways}
    times: dict[str, float] = {}
    unmeasured: list[str] = []

    def measure(name: str, steps: int = _MEASURED_STEPS) -> None:
        seconds = seconds_a_step(by_name[name], task, trials, kinds, steps)
        if seconds is None:
            unmeasured.append(name)
        else:
            times[name] = seconds

    measure("one")
    if stacked := next((name for name in ("stacks", "together") if name in by_name), None):
        measure(stacked)
    if stacked == "stacks" and "stacks" in times and _total(times["stacks"], trials) < _FORKS_SECONDS:
        times["together"] = cores() * times.pop("stacks") / _SHARED  # shorter than the forks take
    if "processes" in by_name and "one" in times and _may_pay(times["one"], min(times.values()), trials):
        wanted = math.ceil(_PROCESSES_SECONDS / times["one"] / _EACH)
        measure("processes", max(_MEASURED_STEPS, min(wanted, trials[0].steps, _MOST_STEPS)))
    if not times:
        return dataclasses.replace(ways[0], reason="no executor could be measured")
    shown = ", ".join(f"{name} {seconds * 1e3:.2g} ms" for name, seconds in times.items())
    because = f"a step of a trial takes {shown}" + (f"; not together: {obstacle}" if obstacle else "")
    if unmeasured:
        because += f"; not measured, since a trial failed or took no longer with more steps: {', '.join(unmeasured)}"
    chosen = next(iter(times))
    for name, seconds in times.items():  # the simplest first
        if seconds * _CLEARLY < times[chosen]:
            chosen = name
    return dataclasses.replace(by_name[chosen], reason=because)


def _total(seconds: float, trials: Sequence[Trial]) -> float:
    """Of a whole run whose steps take so long."""
    return seconds * trials[0].steps * len(trials)


def _may_pay(one: float, best: float, trials: Sequence[Trial]) -> bool:
    """Whether processes could be faster than the best by now, and save more than measuring them costs."""
    return one / cores() * _CLEARLY <= best and _total(best, trials) >= _WORTH_SECONDS


def seconds_a_step(
    way: Executor, task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], count: int = _MEASURED_STEPS
) -> float | None:
    """Seconds of one step of one trial among as many as run at once, without the setup of a run.

    Returns:
        None if it cannot be measured: a trial ended as an error, or the difference of two runs is no more than noise.
    """
    if way.name == "together":
        return _of_a_stack(task, trials[: way.at_once], count)
    if way.name == "stacks":
        parts = divided(trials[: way.at_once])
        with _one_thread():
            return _of_a_stack(task, parts[0], count) * _SHARED / len(parts)
    chosen = trials[: 1 if way.name == "one" else _EACH * cores()]
    for attempt in range(_ATTEMPTS):
        count *= 2 if attempt else 1
        few = task.with_fewer((1 + count) * trials[0].batch_size, trials[0].batch_size)  # scores are not timed
        seconds: list[float] = []
        for steps in (1, 1 + count):
            short = [dataclasses.replace(trial, steps=steps) for trial in chosen]
            began = time.perf_counter()
            records = list(way.run(few, short, 1, kinds))
            seconds.append(time.perf_counter() - began)
            if len(records) < len(short) or any(record.status in RETRIED for record in records):
                return None
        if seconds[1] > seconds[0]:
            return (seconds[1] - seconds[0]) / count / len(chosen)
    return None


@slow_in_silence()
def _of_a_stack(task: StudyTask, trials: Sequence[Trial], count: int) -> float:
    """Seconds of a step of the stack that would run, so that the whole run finds its steps traced."""
    stack, steps = Stack(task, trials), min(trials[0].steps, 1 + count)
    stack.step(1)
    began = time.perf_counter()
    for number in range(2, steps + 1):
        stack.step(number)
        if (taken := time.perf_counter() - began) > _ENOUGH_SECONDS:
            return taken / (number - 1) / len(trials)
    return (time.perf_counter() - began) / max(steps - 1, 1) / len(trials)


@contextlib.contextmanager
def _one_thread() -> Generator[None]:
    """As many threads as a process of a stack has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
