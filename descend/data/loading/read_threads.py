"""Threads that decode images: the libraries that do it release Python's lock meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from descend.machine import cores

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_THREADS", "in_threads", "share_processors"]

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
