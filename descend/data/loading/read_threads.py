"""Threads that decode images and read ahead, and the memory that they leave behind."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from descend.machine import cores, join_threads_at_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

__all__ = ["MAX_THREADS", "BatchMemory", "in_threads", "prefetched", "share_processors"]

MAX_THREADS = 4  # LBANN's --num_io_threads
_AT_LEAST = 4  # tasks that are worth the threads

Result = TypeVar("Result")


_processes = 1


def share_processors(processes: int) -> None:
    """Use a share of the processors from now on: called in each of several processes that read, before the first task.

    More threads than processors would wait for each other, and for Python's lock.
    """
    global _processes
    _processes = processes


@cache
def _pool(process: int) -> ThreadPoolExecutor | None:
    """The threads of a process; a forked one has none of its parent's."""
    threads = min(MAX_THREADS, cores() // _processes)
    return ThreadPoolExecutor(threads, "descend-decode") if threads > 1 else None


def in_threads(task: Callable[[int], Result], count: int) -> list[Result]:
    """The results of task(0), ..., task(count − 1), in order; which thread runs which changes nothing.

    Args:
        task: Depends on its number alone.
        count: Of the calls.

    Raises:
        Exception: that of the first number whose task raised one.
    """
    pool = _pool(os.getpid()) if count >= _AT_LEAST else None
    if pool is None:
        return [task(number) for number in range(count)]
    return list(pool.map(task, range(count)))


# ---- runs an iterator in a background thread, a bounded number of items ahead of its consumer

Item = TypeVar("Item")

JOIN_SECONDS = 2.0  # a read that hangs longer is abandoned; its thread is a daemon and ends with the process


class _End:
    """Follows the last item; carries the exception that ended the iteration early."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def prefetched(items: Iterator[Item], ahead: int) -> Generator[Item, None, None]:
    """The same items in the same order, computed by a thread.

    The thread keeps at most `ahead` items that were not consumed yet. It ends when the items do or when this generator
    is closed, whichever is first; an exception of `items` is raised here, after the items before it.

    Args:
        items: Used only by the thread from now on.
        ahead: 1 or more.
    """
    room = threading.Semaphore(ahead)
    closed = threading.Event()
    ready: SimpleQueue[Item | _End] = SimpleQueue()

    def work() -> None:
        try:
            while room.acquire() and not closed.is_set():
                ready.put(next(items))
        except StopIteration:
            ready.put(_End())
        except BaseException as error:  # of any type: the consumer must not wait for ever
            ready.put(_End(error))

    join_threads_at_exit()
    thread = threading.Thread(target=work, name="descend-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closed.set()
        room.release()
        thread.join(JOIN_SECONDS)


# ---- returns memory that batches have left behind to the system, at the end of an epoch
#
# The allocator of the C library keeps freed buffers of up to 32 MiB for the next ones, which is faster than new pages
# for each batch. How much it keeps depends on which thread freed which buffer first, so a process that reads images
# grows and shrinks by several batches, although nothing is held.

WORTH_BYTES = 2**20  # of a batch: smaller ones leave little
WORTH_READ_BYTES = 2**26  # of batches: fewer are read in less time than the next ones take to get new pages


def bytes_of(batch: Mapping[str, Any]) -> int:
    """Of the fields of a batch, arrays or tensors."""
    return sum(values.nbytes for values in batch.values())


class BatchMemory:
    """Counts the bytes of the batches that are read, and knows when it is worth while to give freed memory back."""

    def __init__(self) -> None:
        self._largest_bytes = 0  # of a batch
        self._read_bytes = 0  # since memory was given back

    def count(self, batch: Mapping[str, Any]) -> None:
        """Note that a batch was read."""
        size = 0
        for values in batch.values():  # a generator in `sum` takes twice as long, at each step
            size += 0 if getattr(values, "is_sparse", False) else values.nbytes
        self._largest_bytes = max(self._largest_bytes, size)
        self._read_bytes += size

    def give_back(self) -> None:
        """Give freed memory back, where batches are large, many were read, and the C library can do it."""
        trim = _trim()
        if trim is None or self._largest_bytes < WORTH_BYTES or self._read_bytes < WORTH_READ_BYTES:
            return
        trim(0)
        self._read_bytes = 0


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries of Linux have none
    except OSError:
        return None
