"""Runs an iterator in a background thread, a bounded number of items ahead of its consumer."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from descend.machine import join_threads_at_exit

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["prefetched"]

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
