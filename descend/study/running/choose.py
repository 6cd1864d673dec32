"""Which way of running trials is the fastest here, by running a few steps of each."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.study.running.one import run_one_by_one
from descend.study.running.together import run_together, whether_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from descend.study.running.trial import Record, Trial
    from descend.study.task import Task

    Run = Callable[[Task, Sequence[Trial], int, dict[str, Any]], Iterator[Record]]

__all__ = ["EXECUTORS", "Executor", "choose"]

EXECUTORS = ("auto", "one", "together")
_MOST_AT_ONCE = 64
_MEASURED_STEPS = 12


@dataclass(frozen=True)
class Executor:
    """A way of running trials.

    Attributes:
        name: "one" or "together".
        run: From a task and trials that are alike to their records.
        at_once: Trials that it takes at a time.
        reason: Why it was chosen, a sentence.
    """

    name: str
    run: Run
    at_once: int
    reason: str


def choose(task: Task, trials: Sequence[Trial], evaluations: int, wanted: str, kinds: dict[str, Any]) -> Executor:
    """The executor for trials that are alike.

    Raises:
        ConfigurationError: there is no such executor, or these trials cannot run together.
    """
    if wanted not in EXECUTORS:
        close = nearest(wanted, EXECUTORS)
        raise ConfigurationError(f"there is no executor '{wanted}'{close or ';'} there are {', '.join(EXECUTORS)}")
    obstacle = whether_together(task, trials, kinds)
    if wanted == "together" and obstacle:
        raise ConfigurationError(f"these trials cannot run together: {obstacle}")
    one = Executor("one", run_one_by_one, 1, obstacle or "asked for")
    together = Executor("together", run_together, _MOST_AT_ONCE, "asked for")
    if wanted == "one" or obstacle or (wanted == "auto" and len(trials) == 1):
        return one
    if wanted == "together":
        return together
    times = {way.name: _seconds_a_trial(way, task, trials, kinds) for way in (one, together)}
    shown = ", ".join(f"{name} {seconds * 1e3:.2g} ms" for name, seconds in times.items())
    faster = min((one, together), key=lambda way: times[way.name])
    return dataclasses.replace(faster, reason=f"a trial of {_MEASURED_STEPS} steps takes {shown}")


def _seconds_a_trial(way: Executor, task: Task, trials: Sequence[Trial], kinds: dict[str, Any]) -> float:
    """Of a short trial, the second time, so that what is made once does not count."""
    short = [dataclasses.replace(trial, steps=min(trial.steps, _MEASURED_STEPS)) for trial in trials[: way.at_once]]
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        for _ in way.run(task, short, 1, kinds):
            pass
        seconds = (time.perf_counter() - began) / len(short)
    return seconds
