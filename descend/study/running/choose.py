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

__all__ = ["EXECUTORS", "Executor", "choose", "seconds_a_step"]

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


def choose(
    task: Task, trials: Sequence[Trial], evaluations: int, wanted: str | Executor, kinds: dict[str, Any]
) -> Executor:
    """The executor for trials that are alike; one that is handed in is taken.

    Raises:
        ConfigurationError: there is no such executor, or these trials cannot run together.
    """
    if isinstance(wanted, Executor):
        return wanted
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
    times = {way.name: seconds_a_step(way, task, trials, kinds) for way in (one, together)}
    shown = ", ".join(f"{name} {seconds * 1e3:.2g} ms" for name, seconds in times.items())
    faster = min((one, together), key=lambda way: times[way.name])
    return dataclasses.replace(faster, reason=f"a step of a trial takes {shown}")


def seconds_a_step(way: Executor, task: Task, trials: Sequence[Trial], kinds: dict[str, Any]) -> float:
    """Of one trial among as many as run at once, from two short runs, so that what is made once does not count."""
    chosen = trials[: way.at_once]
    seconds: list[float] = []
    for steps in (1, 1 + _MEASURED_STEPS):
        short = [dataclasses.replace(trial, steps=steps) for trial in chosen]
        began = time.perf_counter()
        for _ in way.run(task, short, 1, kinds):
            pass
        seconds.append(time.perf_counter() - began)
    return max(seconds[1] - seconds[0], 1e-9) / _MEASURED_STEPS / len(chosen)
