"""Trials one by one in several processes of one thread each, on this machine.

The processes are forks, so they share the data and know modules and optimizers that no text can name. A trial that
takes its process with it is a trial that ended in an error. A process whose parent is gone ends after its trial.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import Stopped
from descend.runtime import StopRequests
from descend.study.running.one import run_one
from descend.study.running.scores import Scorer
from descend.study.running.trial import Record, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.study.task import Task

__all__ = ["cores", "run_in_forks", "whether_in_forks"]

_POLL_SECONDS = 0.2  # between two looks whether somebody asked for an end


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def whether_in_forks(task: Task) -> str | None:
    """Why these trials cannot run in forks of this process; None if they can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system has no forks"
    if cores() < 2:
        return "there is one processor"
    if torch.cuda.is_initialized() or any(part.device.type != "cpu" for part in task.train):
        return "a fork cannot use a device that its parent has begun to use"
    return None


def run_in_forks(
    task: Task, trials: Sequence[Trial], evaluations: int, kinds: dict[str, Any] | None = None
) -> Iterator[Record]:
    """Records of the trials as they end, in any order.

    Args:
        task: A prepared task.
        trials: What is run.
        evaluations: Looks at the scores of each.
        kinds: Optimizer classes by arm, of arms that have no name for them.

    Raises:
        Stopped: a signal asked for an end; trials under way are not recorded and run again.
    """
    context = multiprocessing.get_context("fork")
    parent, number = os.getpid(), context.Value("q", 0)
    left = {trial.id: trial for trial in trials}
    pipes: dict[Any, Any] = {}
    try:
        for _ in range(min(cores(), len(trials))):
            ours, theirs = context.Pipe(duplex=False)
            work = (task, trials, evaluations, kinds or {}, number, theirs, parent)
            process = context.Process(target=_work, args=work, daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends with the process
            pipes[ours] = process
        with StopRequests() as stop:
            while pipes:
                for pipe in wait(list(pipes), _POLL_SECONDS):
                    record = _received(pipe, pipes)
                    if record is not None:
                        del left[record.trial.id]
                        yield record
                if name := stop.requested():
                    raise Stopped(f"{name} asked for an end with {len(left)} trials under way or not begun")
    finally:
        for process in pipes.values():
            process.kill()
            process.join()
    for trial in left.values():
        yield Record(trial, "error", message="its process was killed; too little memory is the usual cause")


def _received(pipe: Any, pipes: dict[Any, Any]) -> Record | None:
    """The next record of a process; None when it has ended."""
    try:
        return Record.read(pipe.recv_bytes().decode())
    except (EOFError, ConnectionError):
        pipes.pop(pipe).join()
        return None


def _work(
    task: Task,
    trials: Sequence[Trial],
    evaluations: int,
    kinds: dict[str, Any],
    number: Any,
    pipe: Any,
    parent: int,
) -> None:
    """What one process does: take the next trial that nobody has taken, until none is left."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked, and ends its processes
    scorer = Scorer(task)
    while os.getppid() == parent:
        with number.get_lock():
            place, number.value = number.value, number.value + 1
        if place >= len(trials):
            break
        trial = trials[place]
        pipe.send_bytes(run_one(task, trial, evaluations, scorer=scorer, kind=kinds.get(trial.arm)).line().encode())
