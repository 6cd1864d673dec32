"""Trials of one architecture at once: the weights of all of them are stacked, and every operation works on the stack.

Each trial has its own weights, order of samples, dropout, statistics of batch norm, rates, decays and constants of its
rule. What it computes is what it would compute alone, up to rounding, since products of a stack add up in another
order; run again with the same trials beside it, it gives the same bits. So it does in a stack of any other width, but
for what rounds by its place in memory: batch norm, and the last elements that kernels of sigmoid, SiLU, ELU, SELU, GELU
and softplus see. A trial that is not finite continues as NaN without touching the others, and is recorded as having
diverged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import random
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.errors import DescendError, Stopped
from descend.runtime import SignalHandler
from descend.study.running.optimizer import is_ours
from descend.study.running.sequential import run_trial, status_of
from descend.study.running.stack import Stack
from descend.study.running.stacked_update import updates_of
from descend.study.running.trial import Record, Trial, evaluation_steps

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from torch import Tensor, nn

    from descend.study.task import StudyTask

__all__ = ["StackRun", "can_run_vmapped", "few_collections", "run_vmapped"]

_TRIED = 2  # trials that are run both ways before more are trusted to a stack
_TRIED_STEPS = 3
_DRAWS = "the module draws random numbers outside of torch's layers, which the trials of a stack would share"
_ROUNDING = 1e-2  # relative difference of a loss after these steps that is more than rounding, in float16 too


def can_run_vmapped(task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any]) -> str | None:
    """Why these trials cannot run at once; None if they can, which is tried with a few steps of the first ones."""
    if reason := _forbidden(task, trials, kinds):
        return reason
    module = task.module(trials[0].seed)
    short = [dataclasses.replace(trial, steps=_TRIED_STEPS) for trial in trials[:_TRIED]]
    few = task.with_fewer(_TRIED_STEPS * trials[0].batch_size, trials[0].batch_size)
    before = _outside(module)
    try:
        stacked = list(run_vmapped(few, short, 1))
    except Stopped:  # says nothing about the modules
        raise
    except Exception as error:  # whatever vmap cannot do, it says in one of many ways
        line = str(error).strip().partition(chr(10))[0]
        return f"a stack of these modules fails: {type(error).__name__}: {line}"
    if _outside(module) != before:
        return _DRAWS
    return _difference(stacked, [run_trial(few, trial, 1) for trial in short])


def _forbidden(task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any]) -> str | None:
    """What is known to keep trials from running at once without a step of them; None if nothing does."""
    if trials[0].arm in kinds or not all(is_ours(trial.configuration) for trial in trials):
        return "an optimizer of another library updates one module at a time"
    if task.phases or task.fine_tuning is not None:
        return "each trial has several phases"
    module = task.module(trials[0].seed)
    if reason := next((layer.runs_alone for layer in module.modules() if getattr(layer, "runs_alone", "")), None):
        return str(reason)
    try:
        updates_of(trials, [module] * len(trials))
    except DescendError as error:
        return str(error)
    return None


def _outside(module: nn.Module) -> tuple[Any, ...]:
    """State of the generators that a module may draw from beside those of its layers."""
    numpy_state: Any = np.random.get_state()  # the global one is what is looked at
    return bytes(torch.get_rng_state().numpy()), random.getstate(), bytes(numpy_state[1]), numpy_state[2]


def _difference(stacked: Sequence[Record], alone: Sequence[Record]) -> str | None:
    """Where a stack is not what its trials are alone; None where they agree up to rounding."""
    for one, other in zip(stacked, alone, strict=True):
        if other.status in ("error", "out of memory"):
            return f"a trial fails: {other.message}"
        ours, theirs = ([x for x in record.scores["train"]["loss"] if math.isfinite(x)] for record in (one, other))
        if one.failed_at != other.failed_at or not np.allclose(ours, theirs, rtol=_ROUNDING, atol=1e-6):
            return "a stack of these modules computes something else than one module does"
    return None


class StackRun:
    """A stack from its first update to its records.

    Args:
        task: A prepared task.
        trials: Of one arm, batch size, number of steps and workload.
        evaluations: Looks at the scores of each.

    Attributes:
        stack: What is run.
        trials: Of it.
        steps: Updates so far.

    Raises:
        ConfigurationError: the trials cannot run together.
    """

    def __init__(self, task: StudyTask, trials: Sequence[Trial], evaluations: int) -> None:
        began = time.perf_counter()
        self.trials = trials
        self.steps = 0
        self._at = evaluation_steps(trials[0].steps, evaluations)
        with few_collections():
            self.stack = Stack(task, trials, len(self._at))
        self._looks: list[dict[str, dict[str, Tensor]]] = []
        self._seconds = time.perf_counter() - began

    def records(self) -> Iterator[Record]:
        """Run it to its end.

        Raises:
            Stopped: a signal asked it to stop; none of the trials is recorded, and they run again.
        """
        began, trials, stack = time.perf_counter(), self.trials, self.stack
        with warnings.catch_warnings(), SignalHandler() as stop:
            warnings.simplefilter("ignore")  # vmap says where it falls back to a loop
            self._looks.append(stack.look())
            while self.steps < trials[0].steps:
                self.steps += 1
                stack.step(self.steps)
                if self.steps in self._at:
                    self._looks.append(stack.look())
                    if bool(stack.failed_at.all()):
                        break
                if signal := stop.requested():
                    raise Stopped(f"{signal} stopped it after {self.steps} of {trials[0].steps} updates")
            confirmed = any(trial.phase == "confirmation" for trial in trials)
            tested = stack.look(test=True) if confirmed else {}
        failed_at = stack.failed_at.tolist()
        taken = [_as_lists(look) for look in self._looks]
        last = _as_lists(tested)
        seconds = (self._seconds + time.perf_counter() - began) / len(trials)
        for place, trial in enumerate(trials):
            record = _record(trial, place, self._at, taken, failed_at[place], seconds)
            if trial.phase == "confirmation" and record.status != "diverged":
                own = {split: {name: [x[place]] for name, x in found.items()} for split, found in last.items()}
                record = dataclasses.replace(record, scores=record.scores | own)
            yield record


def run_vmapped(
    task: StudyTask,
    trials: Sequence[Trial],
    evaluations: int,
    kinds: dict[str, Any] | None = None,
) -> Iterator[Record]:
    """Records of trials that are alike: of one arm, batch size, number of steps and workload.

    Args:
        task: A prepared task.
        trials: What is run.
        evaluations: Looks at the scores of each.
        kinds: Not used; trials with optimizers of other libraries do not run together.

    Raises:
        ConfigurationError: the trials cannot run together.
        Stopped: a signal asked it to stop; none of the trials is recorded, and they run again.
    """
    yield from StackRun(task, trials, evaluations).records()


@contextlib.contextmanager
def few_collections() -> Generator[None]:
    """Without collections of garbage, for a moment in which many objects are made: one of all that torch and its
    libraries have made takes as long as a small stack."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _as_lists(look: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, list[float]]]:
    return {split: {name: x.tolist() for name, x in found.items()} for split, found in look.items()}


def _record(
    trial: Trial,
    place: int,
    at: tuple[int, ...],
    looks: list[dict[str, dict[str, list[float]]]],
    failed_at: int,
    seconds: float,
) -> Record:
    kept = len([step for step in at if not failed_at or step < failed_at])
    scores = {
        split: {name: [look[split][name][place] for look in looks[:kept]] for name in looks[0][split]}
        for split in looks[0]
    }
    if failed_at:
        return Record(trial, "diverged", at[:kept], scores, failed_at, seconds=seconds)
    status, failed = status_of(at, scores["train"]["loss"])
    return Record(trial, status, at, scores, failed, seconds=seconds)
