"""Trials in several processes of one thread each, on this machine: one by one, or as a stack in each process.

The processes are forks, so they share the data and know modules and optimizers that no text can name, and what was
traced before. A trial that takes its process with it is a trial that ended in an error. A process whose parent is gone
ends after its trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from descend.errors import DescendError, Stopped, warn
from descend.launch import cores
from descend.machine import STOP_SIGNALS, signals_blocked
from descend.runtime import SignalHandler
from descend.study.running.scores import Scorer
from descend.study.running.sequential import run_sequentially, run_trial
from descend.study.running.trial import Record, Trial, TrialSetup, trials_on_this_machine
from descend.study.running.vmapped import StackRun, few_collections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from descend.study.task import StudyTask

__all__ = [
    "can_fork",
    "can_stack_in_processes",
    "divided",
    "forked",
    "run_in_forks",
    "run_in_stacks",
]

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_POLL_SECONDS = 0.2  # between two checks for a request to stop


def can_fork(task: StudyTask) -> str | None:
    """Why these trials cannot run in forks of this process; None if they can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system has no forks"
    if sys.platform == "darwin":
        return "a fork is not safe on macOS, whose libraries have threads"
    if cores() < 2:
        return "there is one processor"
    used = task.device not in (None, "cpu") or torch.cuda.is_initialized()
    if used or any(part.device.type != "cpu" for part in task.train):
        return "a fork cannot use a device that its parent has begun to use"
    return None


def run_in_forks(
    task: StudyTask,
    trials: Sequence[Trial],
    evaluations: int,
    kinds: dict[str, Any] | None = None,
    *,
    setup: TrialSetup | None = None,
) -> Iterator[Record]:
    """Records of the trials as they end, in any order. Arguments are those of `run_sequentially`, and the setup.

    Raises:
        Stopped: a signal asked it to stop; trials under way are not recorded and run again.
    """
    setup = setup or TrialSetup()

    def work(places: Iterable[int]) -> Callable[[], Iterator[bytes]]:
        def run() -> Iterator[bytes]:
            scorer = Scorer(task)
            for trial in map(trials.__getitem__, places):
                kind = (kinds or {}).get(trial.arm)
                record = run_trial(task, trial, evaluations, scorer=scorer, kind=kind, checkpoints=setup.checkpoints)
                yield record.line().encode()

        return run

    left = {trial.id: trial for trial in trials}
    at_once = min(trials_on_this_machine(setup.needs, cores()), len(trials))
    shares = _shares(len(trials), at_once)
    least = at_once if isinstance(shares[0], range) else 1
    try:
        for line in forked([work(places) for places in shares], setup.needs.cores, least):
            record = Record.read(line.decode())
            del left[record.trial.id]
            yield record
    except _NotStarted as problem:
        warn(f"descend: trials run one by one in this process: {problem}")
        yield from run_sequentially(task, trials, evaluations, kinds, checkpoints=setup.checkpoints)
        return
    for trial in left.values():
        yield Record(trial, "error", message="its process was killed; too little memory is the usual cause")


def _shares(count: int, processes: int) -> list[Iterable[int]]:
    """The trials of each process: the next one of all, whenever it is done with one.

    On a system without semaphores (no /dev/shm, or a full one) every n-th of them.
    """
    try:
        number = _fork_context().Value("q", 0)
    except (OSError, ImportError) as problem:
        warn(f"descend: trials are divided among processes beforehand, since there are no semaphores here ({problem})")
        return [range(first, count, processes) for first in range(processes)]

    def taken() -> Iterator[int]:
        while True:
            with number.get_lock():
                place, number.value = number.value, number.value + 1
            if place >= count:
                return
            yield place

    return [taken() for _ in range(processes)]


def can_stack_in_processes(task: StudyTask) -> str | None:
    """Why these trials, which can run together, cannot be divided into a stack for each process; None if they can."""
    if reason := can_fork(task):
        return reason
    if any(isinstance(layer, _BATCH_NORM) for layer in task.module(0).modules()):
        return "statistics of batch norm are rounded in another way in a stack of another width"
    return None


def divided(trials: Sequence[Trial]) -> list[Sequence[Trial]]:
    """Trials as parts of equal length, but for the last one: one for each processor."""
    length = math.ceil(len(trials) / cores())
    return [trials[start : start + length] for start in range(0, len(trials), length)]


def run_in_stacks(
    task: StudyTask,
    trials: Sequence[Trial],
    evaluations: int,
    kinds: dict[str, Any] | None = None,
) -> Iterator[Record]:
    """Records of trials that are alike, a stack of them in each process. Arguments are those of `run_vmapped`.

    Raises:
        DescendError: a stack raised something, or its process was killed; none of the trials is recorded.
        Stopped: a signal asked it to stop; none of the trials is recorded, and they run again.
    """
    with few_collections():
        runs = [StackRun(task, part, evaluations) for part in divided(trials)]
        for run in runs:
            run.stack.trace()  # here, so that the next processes have it too

    def work(run: StackRun) -> Callable[[], Iterator[bytes]]:
        return lambda: (record.line().encode() for record in run.records())

    records = [Record.read(line.decode()) for line in forked([work(run) for run in runs])]
    if len(records) < len(trials):
        raise DescendError("a process that ran a stack was killed; too little memory is the usual cause")
    place = {trial.id: number for number, trial in enumerate(trials)}
    yield from sorted(records, key=lambda record: place[record.trial.id])


def _fork_context() -> Any:
    return multiprocessing.get_context("fork")


_SAID, _RAISED = b"=", b"!"


class _NotStarted(DescendError):
    """The system starts no more processes."""


def forked(
    works: Sequence[Callable[[], Iterable[bytes]]], threads: int = 1, least: int | None = None
) -> Iterator[bytes]:
    """What functions say that run at the same time, each in a fork of this process with so many threads.

    A process that is killed says nothing more.

    Args:
        works: The functions.
        threads: Of each process.
        least: So many processes are enough, where the system starts no more; None for all.

    Raises:
        _NotStarted: fewer could be started.
        DescendError: a function raised something.
        Stopped: a signal asked it to stop; the processes were killed.
    """
    parent = os.getpid()
    pipes: dict[Any, Any] = {}
    try:
        with SignalHandler() as stop:
            _refuse_if_stopped(stop)
            for work in works:
                ours, theirs = _fork_context().Pipe(duplex=False)
                process = _fork_context().Process(target=_in_fork, args=(work, theirs, parent, threads), daemon=True)
                try:
                    with signals_blocked():  # this process handles them, and ends its forks
                        process.start()
                except OSError as problem:
                    if len(pipes) >= (len(works) if least is None else least):
                        break
                    text = f"a process for trials cannot be started ({problem.strerror or problem})"
                    raise _NotStarted(text) from problem
                finally:
                    theirs.close()  # so that the pipe ends with the process
                pipes[ours] = process
            while pipes:
                for pipe in wait(list(pipes), _POLL_SECONDS):
                    said = _received(pipe, pipes)
                    if said.startswith(_RAISED):
                        raise DescendError(said[1:].decode())
                    if said:
                        yield said[1:]
                _refuse_if_stopped(stop)
    finally:
        for process in pipes.values():
            process.kill()
            process.join()


def _refuse_if_stopped(stop: SignalHandler) -> None:
    if name := stop.requested():
        raise Stopped(f"{name} stopped it; trials under way or not begun are left")


def _received(pipe: Any, pipes: dict[Any, Any]) -> bytes:
    """The next thing that a process says; nothing when it has ended."""
    try:
        return pipe.recv_bytes()
    except (EOFError, ConnectionError):
        pipes.pop(pipe).join()
        return b""


def _keep_freed_memory() -> None:
    """Have the allocator keep some of what is freed, where it is glibc's.

    By default it returns pieces of a megabyte to the system and gets them again, page by page, in each step: a fifth
    of the time of a stack of convolutions.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another system's library
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_PIECE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_PIECE_BYTES, _KEPT_BYTES = 2**26, 2**28


def _in_fork(work: Callable[[], Iterable[bytes]], pipe: Any, parent: int, threads: int) -> None:
    gc.freeze()  # what the parent made: to look through it copies its memory
    torch.set_num_threads(threads)
    _keep_freed_memory()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # a request that came before the fork is for the parent, too
    try:
        for said in work():
            if os.getppid() != parent:
                return
            pipe.send_bytes(_SAID + said)
    except Exception as error:  # whatever a module or a loss raises
        pipe.send_bytes(_RAISED + f"{type(error).__name__}: {error}".encode())
