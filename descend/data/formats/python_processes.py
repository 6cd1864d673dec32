"""Processes that call a user's code for samples, so that several samples are made at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import weakref
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments.leniency import lenient
from descend.errors import DataError
from descend.lazy import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Take = Callable[[int], Mapping[str, Any]]

__all__ = ["SampleTaker"]

# A user's code is not made for threads, and the readers of two roles may read ahead at the same time.
_ONE_AT_A_TIME = threading.Lock()


class SampleTaker:
    """Calls a user's code for samples, in this process or in others.

    The processes are started by the first samples that are asked for. Each imports the user's module again, and ends
    with this process, however that ends.

    Args:
        source: Gives the function that takes one sample: of a number, an array or nested numbers for each field. It is
            called in each process, so it must be at the top of a module.
        workers: Number of processes; 0 and 1 take samples in this one.
        what: Names the reader in errors.
    """

    def __init__(self, source: Callable[[], Take], workers: int, what: str) -> None:
        self._source, self._workers, self._what = source, workers, what
        self._take = source() if workers <= 1 else None
        self._pool: ProcessPoolExecutor | None = None

    def take(self, samples: NDArray[np.int64]) -> list[Mapping[str, Any]]:
        """What the user's code gives for these samples, in order.

        Raises:
            DataError: it raises, or a process has died.
        """
        numbers = samples.tolist()
        if self._take is not None:
            return _all(self._take, numbers, self._what, _ONE_AT_A_TIME)
        if not numbers:
            return []
        parts = [part.tolist() for part in np.array_split(samples, min(self._workers, len(numbers)))]
        try:
            return [row for rows in self._started().map(_read, parts) for row in rows]
        except BrokenProcessPool as error:
            raise DataError(
                f"{self._what}: a process that reads samples has died, near samples {numbers[0]} to {numbers[-1]}; its "
                "message is above, and the usual causes are a crash in its code and too little memory"
            ) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # A fork of a process with threads of torch may hang; a fresh one imports the user's module alone.
            context = multiprocessing.get_context("spawn")
            arguments = (registered("begin_reading_process"), self._source, self._what)
            self._pool = ProcessPoolExecutor(self._workers, context, _begin, arguments)
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool


_own: tuple[Take, str] | None = None  # of a reading process


def _begin(prepare: Callable[[], None] | None, source: Callable[[], Take], what: str) -> None:
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()
    with lenient():
        _own = source(), what


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(numbers: list[int]) -> list[Mapping[str, Any]]:
    assert _own is not None  # set by _begin
    take, what = _own
    rows = _all(take, numbers, what)
    return [{name: _as_array(value) for name, value in row.items()} for row in rows]


def _as_array(value: Any) -> Any:
    """A value that another process can be sent; what is no array is left to the parent to refuse."""
    try:
        return np.asarray(value, np.float32)
    except (TypeError, ValueError):
        return repr(value)


def _all(take: Take, numbers: list[int], what: str, lock: Any = None) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for number in numbers:
        try:
            with lock or nullcontext():
                rows.append(take(number))
        except Exception as error:  # code of the user, which may raise anything
            raise DataError(f"{what}, sample {number} raises {type(error).__name__}: {error}") from error
    return rows
