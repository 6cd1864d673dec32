"""Run a study: claim trials, run them, record them, until nothing is left. Several processes may do so at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, DataError, DescendError, Stopped, StorageError
from descend.runtime import SignalHandler
from descend.study.running.executor_choice import Executor, check_name, choose
from descend.study.running.plan import check_records, pending
from descend.study.running.processes import run_in_forks
from descend.study.running.sequential import run_sequentially
from descend.study.running.trial import RETRIED, Record, Trial
from descend.study.running.trial_store import Ledger, StudyDirectory
from descend.study.task import StudyTask, open_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.context import SpawnProcess
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import SimpleQueue

    from descend.study.design.study import Study

__all__ = ["conduct", "run_in_processes"]

_POLL_SECONDS = 0.5  # between two looks for trials that other processes hold


def conduct(
    study: Study,
    ledger: Ledger,
    *,
    executor: str | Executor = "auto",
    task: StudyTask | None = None,
    forks: bool = True,
    said: Callable[[dict[str, Record], Record], None] = lambda records, record: None,
) -> dict[str, Record]:
    """Run what is left of a study.

    Args:
        study: The study.
        ledger: Where trials are claimed and recorded.
        executor: "one" by one, "together", in "processes", "auto", which measures a few steps of each, or one of your
            own. What "auto" chose is kept in the ledger, and a resumed study uses the same.
        task: The opened workload; without it that of the study is opened.
        forks: Whether "auto" may use several processes.
        said: Called with all records and the new one after each trial.

    Returns:
        All records, by the id of the trial.

    Raises:
        ConfigurationError: the workload or an optimizer cannot be made, or records are of other settings.
        DescendError: a trial ended in an error that repeating did not mend.
        Stopped: a signal asked for an end; trials under way run again.
    """
    if isinstance(executor, str):
        check_name(executor)
    check_records(study, ledger.records())
    tasks = _Tasks(study, task)
    ways = _Ways(study, tasks, ledger, executor, forks)
    tried: dict[str, int] = {}
    with SignalHandler() as stop:
        while True:
            records = ledger.records()
            settled = {name: one for name, one in records.items() if one.status not in RETRIED}
            if broken := [one for name, one in records.items() if one.status in RETRIED and tried.get(name, 0) > 1]:
                raise DescendError([f"{one.trial.id}: {one.status}: {one.message}" for one in broken[:5]])
            left = pending(study, settled)
            if not left:
                return settled
            if name := stop.requested():
                raise Stopped(f"{name} asked for an end with {len(left)} or more trials left; run again to go on")
            group = _alike(left)
            way = ways.of(group)
            mine = ledger.claim(group, way.at_once)
            if not mine and (mine := ledger.claim(left, 1)):  # others have all of these; help with something else
                way = ways.of(mine)
            if not mine:
                time.sleep(_POLL_SECONDS)
                continue
            for ended in _run(way, tasks.of(mine[0]), mine, study.evaluations, tasks.kinds):
                ledger.record(*ended)
                for record in ended:
                    tried[record.trial.id] = tried.get(record.trial.id, 0) + 1
                    said(records, record)
                    records[record.trial.id] = record


def _run(
    way: Executor, task: StudyTask, trials: Sequence[Trial], evaluations: int, kinds: dict[str, Any]
) -> Iterator[list[Record]]:
    """Records in the parts in which they must be stored: a stack is kept whole, so that it runs again whole.

    A stack in which something is raised, be it memory or one of its trials, is halved until that trial is alone.
    """
    if way.name not in ("together", "stacks"):
        for record in way.run(task, trials, evaluations, kinds):
            yield [record]
        return
    try:
        yield list(way.run(task, trials, evaluations, kinds))
    except Stopped:
        raise
    except Exception:  # whatever a module or a loss raises; alone, the trial that does records it
        if len(trials) == 1:
            alone = run_sequentially if way.name == "together" else run_in_forks
            yield from ([record] for record in alone(task, trials, evaluations, kinds))
            return
        for half in (trials[: len(trials) // 2], trials[len(trials) // 2 :]):
            yield from _run(way, task, half, evaluations, kinds)


_UNDIVIDED = {"processes": "one", "stacks": "together", "together": "one"}  # the first two divide what the others do


class _Ways:
    """By which executor trials run: for each arm and batch size the same from its first trials to its last."""

    def __init__(self, study: Study, tasks: _Tasks, ledger: Ledger, wanted: str | Executor, forks: bool) -> None:
        self._study, self._tasks, self._ledger = study, tasks, ledger
        self._wanted = wanted
        self._forks = forks
        self._chosen: dict[str, Executor] = {}

    def of(self, trials: list[Trial]) -> Executor:
        """The executor of trials that are alike."""
        kind = f"{trials[0].arm}/b{trials[0].batch_size}"
        if kind in self._chosen:
            return self._chosen[kind]
        if self._wanted != "auto":
            way = self._choose(trials, self._wanted)
        elif (name := self._ledger.way(kind)) is not None:
            way = self._known(trials, name)
        else:
            way = self._choose(trials, "auto")
            if len(trials) == 1:  # there is nothing to choose, and later there may be
                return way
            if (name := self._ledger.decide(kind, way.name)) != way.name:
                way = self._known(trials, name)
        self._chosen[kind] = way
        return way

    def _known(self, trials: list[Trial], name: str) -> Executor:
        """What was decided, or what is nearest to it where this process cannot do it."""
        if name in ("processes", "stacks") and not self._forks:
            name = _UNDIVIDED[name]
        try:
            return self._choose(trials, name)
        except ConfigurationError:
            return self._known(trials, _UNDIVIDED[name])

    def _choose(self, trials: list[Trial], wanted: str | Executor) -> Executor:
        task = self._tasks.of(trials[0])
        return choose(task, trials, self._study.evaluations, wanted, self._tasks.kinds, forks=self._forks)


class _Tasks:
    """The workload with the arguments of a trial; those that differ in nothing else share the data."""

    def __init__(self, study: Study, task: StudyTask | None) -> None:
        self._study = study
        self._given = task
        self._opened: dict[str, StudyTask] = {}
        self.kinds = {name: arm.optimizer for name, arm in study.arms.items() if not isinstance(arm.optimizer, str)}

    def of(self, trial: Trial) -> StudyTask:
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
        DescendError: what a process raised, of its class; what was recorded is kept.
    """
    if processes < 1:
        raise ConfigurationError(f"processes must be an integer >= 1, got {processes}")
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    workers = [context.Process(target=work, args=(str(path), executor, said)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    with SignalHandler() as stop:
        while wait([worker.sentinel for worker in workers if worker.is_alive()], _POLL_SECONDS) or _alive(workers):
            if stop.requested():
                for worker in workers:
                    worker.terminate()  # which asks, as the signal did
                break
    for worker in workers:
        worker.join()
    if name := stop.requested():
        raise Stopped(f"{name} asked for an end; what ended is recorded, run again to go on")
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    problems: list[str] = []
    while not said.empty():
        problems += said.get()
    if failed:
        count = f"{len(failed)} of {processes} processes ended with exit codes {failed}; run again to go on"
        raise _KINDS.get(failed[0] or 0, DescendError)([*dict.fromkeys(problems), count])


_KINDS = {kind.exit_code: kind for kind in (ConfigurationError, DataError, StorageError, Stopped)}


def _alive(workers: Iterable[SpawnProcess]) -> bool:
    return any(worker.is_alive() for worker in workers)


def work(path: str, executor: str, said: SimpleQueue[list[str]] | None = None) -> None:
    """What one process does. It ends in good order when the process that started it is gone.

    Args:
        path: The directory of the study.
        executor: As for `conduct`.
        said: Is given what is wrong, where something is.
    """
    import torch

    from descend.study.running.trial_store import read_frozen

    torch.set_num_threads(1)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_ask_for_an_end_after, args=(parent,), daemon=True).start()
    try:
        with StudyDirectory(path) as directory:
            conduct(read_frozen(path), directory, executor=executor, forks=False)
    except Stopped as request:
        raise SystemExit(request.exit_code) from None
    except DescendError as error:
        if said is None:
            raise
        said.put(list(error.problems))
        raise SystemExit(error.exit_code) from None


def _ask_for_an_end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
