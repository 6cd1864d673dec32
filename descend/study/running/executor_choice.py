"""Chooses the fastest executor for trials on this machine, by timing a few steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
    few_collections,
    run_in_forks,
    run_in_stacks,
)
from descend.study.running.sequential import run_sequentially
from descend.study.running.stack import slow_in_silence
from descend.study.running.trial import RETRIED
from descend.study.running.trial_ranks import run_on_ranks
from descend.study.running.trial_setup import TrialSetup, trials_on_this_machine
from descend.study.running.vmapped import BegunStacks, StackRun, Tried, run_vmapped, try_together

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
_ENOUGH_SECONDS = 0.1  # after which a stack is not measured further
_FEW = 3  # steps of a stack that are timed at least
_FAR = 3  # times as fast as trials one by one in all processes, which noise in a few steps of each cannot undo
_CLEARLY = 1.1  # times as fast as a simpler one an executor must be
_SHARED = 1.15  # times as long a step takes beside those of other processes, which share caches and memory
_FORKS_SECONDS = 0.1  # of a whole run, below which it is not worth a fork
_SIMPLEST_FIRST = ("one", "together", "stacks", "processes")
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
    begun = BegunStacks()
    together = Executor("together", functools.partial(run_vmapped, begun=begun), _MOST_AT_ONCE, "asked for")
    stacks = Executor("stacks", functools.partial(run_in_stacks, begun=begun), _MOST_AT_ONCE * cores(), "asked for")
    processes = Executor("processes", functools.partial(run_in_forks, setup=setup), _MOST_AT_ONCE, "asked for")
    here = forks or wanted != "auto"
    apart = can_fork(task) if here else "the study runs in several processes"
    tried = Tried(_alone(setup))
    if wanted != "processes" and tried.obstacle is None:
        with few_collections():
            tried = try_together(task, trials, kinds)
    joint = tried.obstacle if wanted != "processes" else None
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
    with few_collections():
        return _Choice(possible, task, trials, evaluations, kinds, begun, setup).fastest(tried)


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


class _Choice:
    """The times of ways of running trials, as far as they are needed to choose one.

    Stacks in several processes are timed by one of them alone, in this process and as wide as it will be, since a fork
    that runs for a few steps is slow for reasons that have nothing to do with them. One stack shares its work out no
    better than they do, so it is timed only where they cannot run. The steps are those of the run, which continues from
    there. Where they are many times faster than the trials that were run alone before, in every process at once,
    nothing else is timed. Processes that run trials one by one share the machine as stacks do: their time follows from
    that of one trial, since to time them as they run takes as long as a small study.

    An executor that cannot be measured, since a trial ended as an error or the times are all noise, has no time: it is
    neither faster nor slower than another.
    """

    def __init__(
        self,
        ways: Sequence[Executor],
        task: StudyTask,
        trials: Sequence[Trial],
        evaluations: int,
        kinds: dict[str, Any],
        begun: BegunStacks,
        setup: TrialSetup,
    ) -> None:
        self._setup = setup
        self._ways = {way.name: way for way in ways}
        self._task, self._trials, self._evaluations, self._kinds = task, trials, evaluations, kinds
        self._begun = begun
        self._times: dict[str, float] = {}
        self._unmeasured: list[str] = []

    def fastest(self, tried: Tried) -> Executor:
        """The executor whose steps are the shortest.

        Args:
            tried: What came of the trials that were run alone and as a stack.
        """
        times, alone = self._times, tried.seconds_alone
        stacked = next((name for name in ("stacks", "together") if name in self._ways), None)
        rival = (alone or 0.0) / (cores() if "processes" in self._ways else 1) / _FAR
        if stacked:
            self._measure(stacked, begun=self._begun, evaluations=self._evaluations, enough=rival)
        far = stacked in times and times[stacked] < rival
        if far and alone:
            times["one"] = alone
        else:
            self._measure("one")
        if "stacks" in times and _total(times["stacks"], self._trials) < _FORKS_SECONDS:
            times["together"] = cores() * times.pop("stacks") / _SHARED  # shorter than the forks take
        if "processes" in self._ways and "one" in times and not far:
            self._derive_processes()
        chosen = self._chosen(tried.obstacle)
        if chosen.name not in ("together", "stacks"):
            self._begun.drop()
        return chosen

    def _measure(self, name: str, steps: int = _MEASURED_STEPS, **of_stacks: Any) -> None:
        seconds = seconds_a_step(self._ways[name], self._task, self._trials, self._kinds, steps, **of_stacks)
        if seconds is None:
            self._unmeasured.append(name)
        else:
            self._times[name] = seconds

    def _derive_processes(self) -> None:
        """The time of trials in processes from that of one trial, by as many threads as each of them has."""
        needs, alone = self._setup.needs, self._times["one"]
        if (at_once := trials_on_this_machine(needs, cores())) < 2:
            return
        if torch.get_num_threads() > needs.cores:
            with _threads(needs.cores):
                measured = seconds_a_step(self._ways["one"], self._task, self._trials, self._kinds)
            if measured is None:
                return
            alone = measured
        seconds = alone * _SHARED / at_once
        if _total(self._times["one"] - seconds, self._trials) > _FORKS_SECONDS:
            self._times["processes"] = seconds

    def _chosen(self, obstacle: str | None) -> Executor:
        """The simplest of those that none is clearly faster than, with all times as its reason."""
        if not self._times:
            return dataclasses.replace(self._ways["one"], reason="no executor could be measured")
        times = {name: self._times[name] for name in _SIMPLEST_FIRST if name in self._times}
        shown = ", ".join(f"{name} {seconds * 1e3:.2g} ms" for name, seconds in times.items())
        because = f"a step of a trial takes {shown}" + (f"; not together: {obstacle}" if obstacle else "")
        if unmeasured := ", ".join(self._unmeasured):
            because += f"; not measured, since a trial failed or took no longer with more steps: {unmeasured}"
        chosen = next(iter(times))
        for name, seconds in times.items():
            if seconds * _CLEARLY < times[chosen]:
                chosen = name
        return dataclasses.replace(self._ways[chosen], reason=because)


def _total(seconds: float, trials: Sequence[Trial]) -> float:
    """Of a whole run whose steps take so long."""
    return seconds * trials[0].steps * len(trials)


def seconds_a_step(
    way: Executor,
    task: StudyTask,
    trials: Sequence[Trial],
    kinds: dict[str, Any],
    count: int = _MEASURED_STEPS,
    *,
    begun: BegunStacks | None = None,
    evaluations: int = 1,
    enough: float = 0.0,
) -> float | None:
    """Seconds of one step of one trial among as many as run at once, without the setup of a run.

    Args:
        way: The executor.
        task: A prepared task.
        trials: The trials to run.
        kinds: Optimizer classes by arm.
        count: Steps to time, at most where trials are stacked.
        begun: Is given the stack that was timed, whose run can go on from there.
        evaluations: Of each trial in that run.
        enough: Seconds; a stack whose first few steps take less is not timed further.

    Returns:
        None if it cannot be measured: a trial ended as an error, or the difference of two runs is no more than noise.
    """
    if way.name in ("together", "stacks"):
        parts = [trials[: way.at_once]] if way.name == "together" else divided(trials[: way.at_once])
        share = 1 / len(parts) if len(parts) == 1 else _SHARED / len(parts)
        run = StackRun(task, parts[0], evaluations)
        if begun is not None:
            begun.keep(run)
        with _threads(1) if way.name == "stacks" else contextlib.nullcontext():
            return _of_a_stack(run, count, enough / share) * share
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
def _of_a_stack(run: StackRun, count: int, enough: float) -> float:
    """Seconds of a step of one trial of a stack, whose run can go on from there.

    Args:
        run: A new one.
        count: Steps behind the first one.
        enough: Seconds of a step of one trial; if a few steps take less, no more are timed.
    """
    first, taken = run.step_before_looks(), list[float]()
    while len(taken) < count and (seconds := run.step_before_looks()) is not None:
        taken.append(seconds)
        far = len(taken) >= _FEW and sum(taken) / len(taken) / len(run.trials) < enough
        if far or sum(taken) > _ENOUGH_SECONDS:
            break
    return (sum(taken) / len(taken) if taken else first or 0.0) / len(run.trials)


@contextlib.contextmanager
def _threads(count: int) -> Generator[None]:
    """As many threads as a process of several has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
