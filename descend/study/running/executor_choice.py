"""Chooses the executor of trials: by a rule from the module, the batch size and the number of trials, without timing.

Trials are stacked where they can be and parameters times the batch size are at most `MOST_STACKED`: there, calling the
operations of each trial takes longer than their arithmetic. So it depends on nothing that an interruption or another
machine changes, and a study that continues computes as it began. Whether the work is divided among processes changes no
bits, and follows from how much is left. `docs/decisions/0013-trials-at-once.md` has the measurements.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.launch import cores
from descend.study.running.processes import can_fork, can_stack_in_processes, run_in_forks, run_in_stacks
from descend.study.running.sequential import run_sequentially
from descend.study.running.trial import TrialSetup, trials_on_this_machine
from descend.study.running.trial_ranks import run_on_ranks
from descend.study.running.vmapped import can_run_vmapped, run_vmapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from descend.study.running.trial import Record, Trial
    from descend.study.task import StudyTask

    Run = Callable[[StudyTask, Sequence[Trial], int, dict[str, Any]], Iterator[Record]]

__all__ = ["EXECUTORS", "MOST_STACKED", "Executor", "check_name", "choose"]

EXECUTORS = ("auto", "one", "together", "stacks", "processes", "ray")
MOST_STACKED = 2**24  # parameters times samples of a batch, up to which stacked trials take less time than single ones
_MOST_AT_ONCE = 64
_LEAST_AT_ONCE = 4
_MOST_WEIGHTS = 2**21  # of all trials of a stack, which with gradients and state then stay in a cache
_LEAST_UPDATES = 500  # of single trials together, from which processes take less time than starting them
_LEAST_STACKED = 2**31  # parameters times samples of all updates of stacks, from which it is so
_CALLS = 2**17  # parameters times samples whose arithmetic takes as long as calling the operations of an update


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
    planned: int | None = None,
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
        planned: Trials of the arm in the study, of which `trials` are left; None is these.

    Raises:
        ConfigurationError: there is no such executor, or it cannot run these trials.
    """
    if isinstance(wanted, Executor):
        return wanted
    check_name(wanted)
    setup = setup or TrialSetup()
    if setup.needs.ranks > 1:
        return _on_ranks(setup, wanted)
    parameters = sum(p.numel() for p in task.module(trials[0].seed).parameters())
    width = min(_MOST_AT_ONCE, max(_LEAST_AT_ONCE, 2 ** int(math.log2(max(1, _MOST_WEIGHTS / max(1, parameters))))))
    ways = {
        "one": Executor("one", functools.partial(run_sequentially, checkpoints=setup.checkpoints), 1, "asked for"),
        "together": Executor("together", run_vmapped, width, "asked for"),
        "stacks": Executor("stacks", run_in_stacks, width * cores(), "asked for"),
        "processes": Executor("processes", functools.partial(run_in_forks, setup=setup), _MOST_AT_ONCE, "asked for"),
    }
    if wanted == "auto":
        name, reason = _chosen(task, trials, kinds, setup, len(trials) if planned is None else planned, forks)
        return dataclasses.replace(ways[name], reason=reason)
    if obstacle := _obstacle(wanted, task, trials, kinds, setup):
        raise ConfigurationError(f"these trials cannot run {_HOW[wanted]}: {obstacle}")
    return ways[wanted]


_HOW = {"together": "together", "stacks": "in a stack for each process", "processes": "in processes"}


def _on_ranks(setup: TrialSetup, wanted: str) -> Executor:
    """The executor of trials that have several ranks each."""
    if wanted not in ("auto", "one"):
        raise ConfigurationError(
            f"these trials cannot run {_HOW[wanted]}: each has {setup.needs.ranks} ranks on this machine; say "
            "--executor one, or ray"
        )
    return Executor("one", functools.partial(run_on_ranks, setup=setup), 1, "each trial has several ranks")


def _obstacle(
    name: str, task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], setup: TrialSetup
) -> str | None:
    """Why an executor cannot run these trials; None if it can."""
    if name == "one":
        return None
    if name == "processes":
        return can_fork(task)
    stacked = _alone(setup) or can_run_vmapped(task, trials, kinds)
    return stacked or (can_stack_in_processes(task) if name == "stacks" else None)


def _alone(setup: TrialSetup) -> str | None:
    """Why trials of this setup cannot be stacked; None if they can."""
    if setup.checkpoints is not None:
        return "each trial is saved by itself (checkpoint_every)"
    return "a stack shares the processors, and each trial needs several" if setup.needs.cores > 1 else None


def _chosen(
    task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any], setup: TrialSetup, planned: int, forks: bool
) -> tuple[str, str]:
    """The name of the executor that "auto" stands for, and why."""
    if planned == 1:
        return "one", "there is one trial"
    weights = list(task.module(trials[0].seed).parameters())
    size = sum(p.numel() for p in weights) * trials[0].batch_size
    count = max(planned, len(trials))
    updates = count * trials[0].steps
    on_gpu = any(p.is_cuda for p in weights)  # which a stack of any size fills better
    obstacle = _alone(setup)
    if obstacle is None and size > MOST_STACKED and not on_gpu:
        obstacle = f"parameters times the batch size are {size:,}, more than {MOST_STACKED:,}"
    obstacle = obstacle or can_run_vmapped(task, trials, kinds)
    if obstacle is None:
        many = count >= 2 * cores() and updates * (size + _CALLS) >= _LEAST_STACKED
        divided = forks and many and can_stack_in_processes(task) is None
        return "stacks" if divided else "together", f"parameters times the batch size are {size:,}"
    reason = f"not together: {obstacle}"
    several = forks and updates >= _LEAST_UPDATES and can_fork(task) is None
    if several and trials_on_this_machine(setup.needs, cores()) > 1:
        return "processes", reason
    return "one", reason
