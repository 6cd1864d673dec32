"""Worker processes that read samples.

Each process has a pipe and at most two tasks, so that none waits while the batch of another one takes longer: n of them
work up to 2 n batches ahead. Both tasks fit the buffer of the pipe, or there is one: else the parent could wait for a
process to read a task, and the process for the parent to read an answer. Batches come back in the order in which they
were requested, in memory that both processes map (shared_slots.py). A process ends when its pipe is closed, so none
outlives its parent.

Processes are spawned. A fork would copy the locks of torch's and Arrow's threads, in whatever state they are, and a
network library that has registered memory with a device (InfiniBand) loses it in the parent as soon as the child
writes, unless `IBV_FORK_SAFE=1` was set before it was loaded.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import sys
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from descend.data.loading.read_threads import BatchMemory, share_processors
from descend.data.loading.shared_slots import CAN_SHARE, SlotReader, SlotWriter
from descend.errors import ConfigurationError, DataError, DescendError
from descend.machine import signals_blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.loading.map_dataset import IndexedRows, Pipeline

__all__ = ["Pool"]

_GRACE_SECONDS = 1.0
_START_SECONDS = 600.0  # for Python, torch and the module of the data set, on a busy host or a slow file system
_POLL_SECONDS = 0.1
_DEATH_SECONDS = 60.0  # from the end of its pipe to its exit; Python finalizes torch in between
_TASKS = 2 if sys.platform == "linux" else 1  # macOS acknowledges descriptors on the pipe; Windows has small buffers
_FEW_SAMPLES = 2048  # of a task, 8 bytes each; Linux buffers some 200 KiB
_NO_SAMPLE = -1  # no sample was begun yet
_UNKNOWN = -2  # nothing is shared with the process


@dataclass(frozen=True)
class _Failure:
    """An error sent to the parent: a DescendError as it is, others with their message."""

    error: DescendError


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Any  # a Connection; the class has another name on other systems
    sample: Any  # shared int64: the sample that is being read
    tasks: int = 0  # that it was given and has not answered
    slots: SlotReader = field(default_factory=SlotReader)


class Pool:
    """Spawned processes that read samples.

    Args:
        pipeline: How samples are read; must be picklable.
        workers: Number of processes, 1 or more.
        timeout_seconds: Longest wait for one batch; None waits for ever. The start of a process does not count.
        prepare: Called in each process before the first sample with its number, as torch's worker_init_fn.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        workers: int,
        timeout_seconds: float | None = None,
        prepare: Callable[[int], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._count = workers
        self._timeout = timeout_seconds
        self._prepare = prepare
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end, self._workers)  # also when the interpreter ends

    def stream(self, tasks: Iterable[tuple[NDArray[np.int64], int]]) -> Generator[IndexedRows, None, None]:
        """Rows for each (ids, epoch), in order.

        Raises:
            DataError: a sample cannot be used, a process died, or none came in time.
            ConfigurationError: the data set cannot be sent to another process.
        """
        self._start()
        under_way: deque[_Worker] = deque()
        for number, task in enumerate(tasks):
            worker = self._workers[number % self._count]
            while number < self._count and worker.tasks:  # batches of an epoch that was left early
                self._receive(worker)
            ahead = self._count * (_TASKS if len(task[0]) <= _FEW_SAMPLES else 1)
            rows = [self._receive(under_way.popleft()) for _ in range(len(under_way) - ahead + 1)]
            self._send(worker, task)
            under_way.append(worker)
            yield from rows
        while under_way:
            yield self._receive(under_way.popleft())
        for worker in self._workers:
            with suppress(OSError):  # it is dead, as the next task will find
                worker.pipe.send(None)

    def close(self) -> None:
        """End all processes; those that hang are killed."""
        _end(self._workers)

    def _start(self) -> None:
        if self._workers:
            return
        context = multiprocessing.get_context("spawn")
        if os.name == "posix":
            resource_tracker.ensure_running()  # it would start with the first process, and unblock signals
        try:
            with signals_blocked():
                for number in range(self._count):
                    ours, theirs = context.Pipe()
                    _limit_reads(ours, self._timeout)
                    sample = _shared_number(context)
                    arguments = (theirs, self._pipeline, sample, self._prepare, number, self._count)
                    process = context.Process(
                        target=_serve, args=arguments, name=f"descend-loader-{number}", daemon=True
                    )
                    process.start()
                    theirs.close()
                    self._workers.append(_Worker(process, ours, sample))
        except OSError as error:  # too many processes or files, or too little memory
            self.close()
            raise ConfigurationError(
                f"workers={self._count}: a process cannot be started ({error.strerror or error}); pass fewer, or "
                "workers=0 to read in this process"
            ) from error
        except Exception as error:  # pickle raises PicklingError, AttributeError, TypeError, ...
            self.close()
            raise ConfigurationError(
                f"workers={self._count}: {self._pipeline.name} cannot be pickled for another process ({error}); define "
                "the data set and its functions at the top level of a module, or pass workers=0"
            ) from error

    def _send(self, worker: _Worker, task: tuple[NDArray[np.int64], int]) -> None:
        try:
            worker.pipe.send((*task, worker.slots.take_freed()))
        except OSError:
            raise self._death(worker) from None
        worker.tasks += 1

    def _receive(self, worker: _Worker) -> IndexedRows:
        if not self._comes(worker):
            raise self._hang(worker)
        from descend.data.loading.map_dataset import IndexedRows

        try:
            answer = worker.pipe.recv()
            worker.tasks -= 1
            if isinstance(answer, _Failure):
                raise answer.error
            content, ids, bad = answer
            return IndexedRows(worker.slots.tensors(content, worker.pipe), ids, bad)
        except BlockingIOError:  # it was suspended between parts of its answer
            raise self._hang(worker) from None
        except (EOFError, OSError, RuntimeError):  # of recv_handle, where there is nothing
            raise self._death(worker) from None

    def _comes(self, worker: _Worker) -> bool:
        """Wait for an answer, or for the end of the process; False after the timeout."""
        either = [worker.pipe, worker.process.sentinel]
        until = time.monotonic() + _START_SECONDS
        while self._timeout and worker.sample.value == _NO_SAMPLE and time.monotonic() < until:
            if wait(either, _POLL_SECONDS):
                return True
        return bool(wait(either, self._timeout))

    def _at(self, worker: _Worker) -> str:
        sample = worker.sample.value
        which = {_NO_SAMPLE: "the first", _UNKNOWN: "a sample"}.get(sample, f"sample {sample}")
        return f"{which} of {self._pipeline.name}"

    def _hang(self, worker: _Worker) -> DataError:
        return DataError(
            f"{self._at(worker)} is not read after {self._timeout:g} seconds: it hangs, or is slow and needs a larger "
            "timeout_seconds="
        )

    def _death(self, worker: _Worker) -> DataError:
        worker.process.join(_DEATH_SECONDS)
        code = worker.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if worker.sample.value == _NO_SAMPLE:
            return DataError(
                f"loader {worker.process.name} (process {worker.process.pid}) {how} before its first sample; its "
                "message is above. A script that uses workers= needs `if __name__ == '__main__':` around its call"
            )
        hint = "; the usual cause is too little memory" if -code == signal.SIGKILL else ""
        return DataError(
            f"loader {worker.process.name} (process {worker.process.pid}) was {how} at {self._at(worker)}{hint}"
        )


def _shared_number(context: Any) -> Any:
    """An int64 that a process shares; without shared memory (no /dev/shm) one of each, which says nothing here."""
    try:
        return context.RawValue("q", _NO_SAMPLE)
    except OSError:
        return ctypes.c_longlong(_UNKNOWN)


def _limit_reads(pipe: Any, timeout_seconds: float | None) -> None:
    """Have each read of a pipe raise BlockingIOError after so long; an answer is several of them."""
    if timeout_seconds and CAN_SHARE:  # then a pipe is a pair of sockets
        whole = int(timeout_seconds)
        limit = struct.pack("@ll", whole, max(int((timeout_seconds - whole) * 1e6), 1))  # a timeval
        with socket.socket(fileno=os.dup(pipe.fileno())) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        if worker.tasks:  # it may hang in a read
            worker.process.kill()
        worker.process.join(_GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
    workers.clear()


def _serve(
    pipe: Connection,
    pipeline: Pipeline,
    sample: Any,
    prepare: Callable[[int], None] | None,
    number: int,
    count: int,
) -> None:
    """The main loop of a worker process: read what is requested until the pipe is closed."""
    import torch

    torch.set_num_threads(1)  # the processes use the cores already
    share_processors(count)
    if prepare:
        prepare(number)

    def begin(i: int) -> None:
        sample.value = i

    slots, memory = SlotWriter(), BatchMemory()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        if task is None:  # the end of an epoch
            memory.give_back()
            continue
        ids, epoch, freed = task
        descriptor = None
        rows = _read(pipeline, ids, epoch, begin)
        if isinstance(rows, _Failure):
            slots.free(freed)
            answer: Any = rows
        else:
            memory.count(rows.fields)
            content, descriptor = slots.put(rows.fields, freed)
            answer = (content, rows.ids, rows.bad)
        del rows  # a batch is not held while the next one is made
        try:
            pipe.send(answer)
            if descriptor is not None:
                reduction.send_handle(pipe, descriptor, os.getppid())
        except OSError:
            return
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _read(
    pipeline: Pipeline, ids: NDArray[np.int64], epoch: int, begin: Callable[[int], None]
) -> IndexedRows | _Failure:
    try:
        return pipeline.read(ids, epoch, begin)
    except DescendError as error:
        return _Failure(DataError(list(error.problems)))
    except Exception as error:
        return _Failure(DataError(f"samples {ids.tolist()} of {pipeline.name}: {type(error).__name__}: {error}"))
