"""Run a study: claim trials, run them, record them, until nothing is left. Several processes may do so at once."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, DataError, DescendError, Stopped, StorageError
from descend.launch import cores
from descend.runtime import SignalHandler
from descend.study.running.executor_choice import Executor, check_name, choose
from descend.study.running.plan import check_records, pending
from descend.study.running.processes import run_in_forks
from descend.study.running.ray_pool import RayCluster, conduct_in_pool
from descend.study.running.sequential import run_sequentially
from descend.study.running.trial import RETRIED, TrialSetup, trials_on_this_machine
from descend.study.running.trial_store import StudyDirectory, read_frozen
from descend.study.task import StudyTask, task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.context import SpawnProcess
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import SimpleQueue

    from descend.study.design.needs import Needs
    from descend.study.design.study import Study
    from descend.study.running.trial import Record, Trial
    from descend.study.running.trial_store import Ledger

__all__ = ["RecordKeeper", "conduct", "run_in_processes"]

_POLL_SECONDS = 0.5  # between two looks for trials that other processes hold


def conduct(
    study: Study,
    ledger: Ledger,
    *,
    executor: str | Executor | RayCluster = "auto",
    task: StudyTask | None = None,
    forks: bool = True,
    said: Callable[[dict[str, Record], Record], None] = lambda records, record: None,
    idle_seconds: float = math.inf,
) -> dict[str, Record]:
    """Run what is left of a study.

    Args:
        study: The study.
        ledger: Where trials are claimed and recorded.
        executor: "one" by one, "together", in "stacks" or "processes", "auto", which chooses among these by a rule, on
            "ray", or one of your own.
        task: The opened workload; without it that of the study is opened.
        forks: Whether "auto" may use several processes.
        said: Called with all records and the new one after each trial.
        idle_seconds: After so many seconds in which other processes held all trials that are left, this one leaves.

    Returns:
        All records, by the id of the trial.

    Raises:
        ConfigurationError: the workload or an optimizer cannot be made, records are of other settings, or the machine
            has not what a trial needs.
        DescendError: a trial ended in an error that repeating did not mend.
        Stopped: a signal asked it to stop, or nothing was left to claim; trials under way run again.
    """
    if isinstance(executor, str):
        check_name(executor)
        executor = RayCluster() if executor == "ray" else executor
    check_records(study, ledger.records())
    setup = TrialSetup.of(study, ledger.path)
    keeper = RecordKeeper(ledger, setup, said)
    if isinstance(executor, RayCluster):
        return conduct_in_pool(study, ledger, executor.pool(study, setup, task), keeper)
    trials_on_this_machine(study.needs, cores())
    tasks = _Tasks(study, task)
    ways = _Ways(study, tasks, executor, forks, setup)
    idle = _Idleness(idle_seconds)
    with SignalHandler() as stop:
        while True:
            settled = keeper.settled()
            left = pending(study, settled)
            if not left:
                return settled
            if name := stop.requested():
                raise Stopped(f"{name} stopped it with {len(left)} or more trials left; run again to continue")
            group = _alike(left)
            way = ways.of(group)
            mine = ledger.claim(group, way.at_once)
            if not mine and (mine := ledger.claim(left, 1)):  # others have all of these; help with something else
                way = ways.of(mine)
            if not mine:
                idle.wait(len(left))
                continue
            for ended in _run(way, tasks.of(mine[0]), mine, study.evaluations, tasks.kinds):
                keeper.keep(ended)
            idle.end()


class _Idleness:
    """Waits while other processes hold all trials that are left, and no longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None

    def wait(self, left: int) -> None:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if now - self._began >= self._seconds:
            raise Stopped(
                f"other processes hold the {left} trials that can run now, for {self._seconds:g} seconds; run again to "
                "help with those that follow"
            )
        time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        self._began = None


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


class _Ways:
    """By which executor trials run: for each arm and batch size the same from its first trials to its last."""

    def __init__(self, study: Study, tasks: _Tasks, wanted: str | Executor, forks: bool, setup: TrialSetup) -> None:
        self._study, self._tasks, self._wanted, self._forks, self._setup = study, tasks, wanted, forks, setup
        self._chosen: dict[tuple[str, int], Executor] = {}

    def of(self, trials: list[Trial]) -> Executor:
        """The executor of trials that are alike."""
        arm, batch_size = trials[0].arm, trials[0].batch_size
        if (arm, batch_size) not in self._chosen:
            planned = self._study.searches * self._study.trials_of(arm)
            task, kinds, evaluations = self._tasks.of(trials[0]), self._tasks.kinds, self._study.evaluations
            how: dict[str, Any] = {"forks": self._forks, "setup": self._setup, "planned": planned}
            self._chosen[arm, batch_size] = choose(task, trials, evaluations, self._wanted, kinds, **how)
        return self._chosen[arm, batch_size]


class _Tasks:
    """The workload with the arguments of a trial; those that differ in nothing else share the data."""

    def __init__(self, study: Study, task: StudyTask | None) -> None:
        self._study = study
        self._given = task if task is None or study.needs.device is None else task.on_device(study.needs.device)
        self._opened: dict[str, StudyTask] = {}
        self.kinds = {name: arm.optimizer for name, arm in study.arms.items() if not isinstance(arm.optimizer, str)}

    def of(self, trial: Trial) -> StudyTask:
        own = {name: value for name, value in trial.configuration.items() if name.startswith("workload.")}
        if self._given is not None and not own:
            return self._given
        key = repr(sorted(own.items()))
        if key not in self._opened:
            if len(self._opened) > 8:  # data sets in memory; an argument that is searched over makes many
                self._opened.clear()
            self._opened[key] = task_of(self._study, own)
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
    visible = _shared_gpus(read_frozen(path).needs, processes)
    workers = [context.Process(target=work, args=(str(path), executor, said, own)) for own in visible]
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
        raise Stopped(f"{name} stopped it; what ended is recorded, run again to continue")
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    problems: list[str] = []
    while not said.empty():
        problems += said.get()
    if failed:
        count = f"{len(failed)} of {processes} processes ended with exit codes {failed}; run again to continue"
        raise _KINDS.get(failed[0] or 0, DescendError)([*dict.fromkeys(problems), count])


def _shared_gpus(needs: Needs, processes: int) -> Sequence[str | None]:
    """What CUDA_VISIBLE_DEVICES is in each of some processes; None leaves it as it is.

    Raises:
        ConfigurationError: the machine has not what a trial in each of them needs.
    """
    room = trials_on_this_machine(needs, cores())
    if not needs.gpus:
        return [None] * processes
    if processes > room:
        raise ConfigurationError(
            f"{processes} processes run as many trials at once, of {needs} each, and this machine has room for {room}: "
            f"say --processes {room}"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(number) for number in range(processes * needs.all_gpus)]
    return [",".join(names[start : start + needs.all_gpus]) for start in range(0, len(names), needs.all_gpus)][
        :processes
    ]


_KINDS = {kind.exit_code: kind for kind in (ConfigurationError, DataError, StorageError, Stopped)}


def _alive(workers: Iterable[SpawnProcess]) -> bool:
    return any(worker.is_alive() for worker in workers)


def work(path: str, executor: str, said: SimpleQueue[list[str]] | None = None, gpus: str | None = None) -> None:
    """What one process does. It ends in good order when the process that started it is gone.

    Args:
        path: The directory of the study.
        executor: As for `conduct`.
        said: Is given what is wrong, where something is.
        gpus: The GPUs that it uses, as in CUDA_VISIBLE_DEVICES; None for all.
    """
    import torch

    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # read when CUDA is used first
    study = read_frozen(path)
    torch.set_num_threads(study.needs.cores)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_ask_for_an_end_after, args=(parent,), daemon=True).start()
    try:
        with StudyDirectory(path) as directory:
            conduct(study, directory, executor=executor, forks=False)
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


_ATTEMPTS = 2  # at a trial that ends in an error
_SHOWN = 5  # trials that an error names


class RecordKeeper:
    """Stores records in a ledger, and says when a trial failed too often.

    Args:
        ledger: Where records are stored.
        setup: Of the trials.
        said: Called with all records and the new one after each trial.
    """

    def __init__(self, ledger: Ledger, setup: TrialSetup, said: Callable[[dict[str, Record], Record], None]) -> None:
        self._ledger, self._setup, self._said = ledger, setup, said
        self._tried: Counter[str] = Counter()
        self._known: dict[str, Record] = {}

    def settled(self) -> dict[str, Record]:
        """All records but those of trials that run again.

        Raises:
            DescendError: a trial ended in an error that repeating did not mend.
        """
        self._known = self._ledger.records()
        again = {name: one for name, one in self._known.items() if one.status in RETRIED}
        if broken := [one for name, one in again.items() if self._tried[name] >= _ATTEMPTS]:
            raise DescendError([f"{one.trial.id}: {one.status}: {one.message}" for one in broken[:_SHOWN]])
        return {name: one for name, one in self._known.items() if name not in again}

    def keep(self, records: Sequence[Record]) -> None:
        """Store records of trials that this process claimed: all of them or, if it is killed, none."""
        self._ledger.record(*records)
        for record in records:
            self._tried[record.trial.id] += 1
            if self._setup.checkpoints is not None and record.status not in RETRIED:
                self._setup.checkpoints.discard(record.trial)
            self._said(self._known, record)
            self._known[record.trial.id] = record
