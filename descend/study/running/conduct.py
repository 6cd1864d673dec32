"""Run a study: claim trials, run them, record them, until nothing is left. Several processes may do so at once."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, DescendError
from descend.study.running.choose import Executor, choose
from descend.study.running.ledger import Ledger, StudyDirectory
from descend.study.running.phases import pending
from descend.study.running.trial import RETRIED, Record, Trial
from descend.study.task import Task, open_task

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from descend.study.design.study import Study

__all__ = ["conduct", "run_in_processes"]

_POLL_SECONDS = 0.5  # between two looks for trials that other processes hold


def conduct(
    study: Study,
    ledger: Ledger,
    *,
    executor: str | Executor = "auto",
    task: Task | None = None,
    said: Callable[[dict[str, Record], Record], None] = lambda records, record: None,
) -> dict[str, Record]:
    """Run what is left of a study.

    Args:
        study: The study.
        ledger: Where trials are claimed and recorded.
        executor: "one" by one, "together", "auto", which measures a few steps of both, or one of your own.
        task: The opened workload; without it that of the study is opened.
        said: Called with all records and the new one after each trial.

    Returns:
        All records, by the id of the trial.

    Raises:
        ConfigurationError: the workload or an optimizer cannot be made.
        DescendError: a trial ended in an error that repeating did not mend.
    """
    tasks = _Tasks(study, task)
    tried: dict[str, int] = {}
    chosen: dict[tuple[str, int], Executor] = {}
    while True:
        records = ledger.records()
        settled = {name: one for name, one in records.items() if one.status not in RETRIED}
        if broken := [one for name, one in records.items() if one.status in RETRIED and tried.get(name, 0) > 1]:
            raise DescendError([f"{one.trial.id}: {one.status}: {one.message}" for one in broken[:5]])
        left = pending(study, settled)
        if not left:
            return settled
        group = _alike(left)
        key = (group[0].arm, group[0].batch_size)
        if key not in chosen:
            chosen[key] = choose(tasks.of(group[0]), group, study.evaluations, executor, tasks.kinds)
        way, mine = chosen[key], ledger.claim(group, chosen[key].at_once)
        if not mine and (mine := ledger.claim(left, 1)):  # others have all of these; help with something else
            way = choose(tasks.of(mine[0]), mine, study.evaluations, executor, tasks.kinds)
        if not mine:
            time.sleep(_POLL_SECONDS)
            continue
        for record in way.run(tasks.of(mine[0]), mine, study.evaluations, tasks.kinds):
            tried[record.trial.id] = tried.get(record.trial.id, 0) + 1
            ledger.record(record)
            said(records, record)


class _Tasks:
    """The workload with the arguments of a trial; those that differ in nothing else share the data."""

    def __init__(self, study: Study, task: Task | None) -> None:
        self._study = study
        self._given = task
        self._opened: dict[str, Task] = {}
        self.kinds = {name: arm.optimizer for name, arm in study.arms.items() if not isinstance(arm.optimizer, str)}

    def of(self, trial: Trial) -> Task:
        own = {k.partition(".")[2]: v for k, v in trial.configuration.items() if k.startswith("workload.")}
        options = {**self._study.workload_options, **own}
        if self._given is not None and not own:
            return self._given
        key = repr(sorted(options.items()))
        if key not in self._opened:
            if len(self._opened) > 8:  # data sets in memory; an argument that is searched over makes many
                self._opened.clear()
            self._opened[key] = open_task(self._study.workload, options)
        return self._opened[key]


def _alike(trials: list[Trial]) -> list[Trial]:
    """Those that can run at once with the first: of one arm, batch size, budget and arguments of the workload."""

    def kind(trial: Trial) -> tuple[Any, ...]:
        workload = sorted((k, repr(v)) for k, v in trial.configuration.items() if k.startswith("workload."))
        return (trial.arm, trial.batch_size, trial.steps, *workload)

    return [trial for trial in trials if kind(trial) == kind(trials[0])]


def run_in_processes(path: str | os.PathLike[str], processes: int, executor: str = "auto") -> None:
    """Run what is left of the study in a directory by several processes of one thread each.

    Raises:
        DescendError: a process failed; what the others recorded is kept.
    """
    if processes < 1:
        raise ConfigurationError(f"processes is {processes} and is to be at least 1")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(str(path), executor)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed := [worker.exitcode for worker in workers if worker.exitcode]:
        raise DescendError(f"{len(failed)} of {processes} processes ended with exit codes {failed}; run again to go on")


def work(path: str, executor: str) -> None:
    """What one process does."""
    import torch

    from descend.study.running.ledger import read_frozen

    torch.set_num_threads(1)
    with StudyDirectory(path) as directory:
        conduct(read_frozen(path), directory, executor=executor)


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records by the id of their trial, so that a report does not depend on who ran what."""
    return sorted(records, key=lambda record: record.trial.id)
