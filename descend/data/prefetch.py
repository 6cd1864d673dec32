"""Do the work of an iterator in a thread, a few items ahead of whoever takes them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from descend.thread_shutdown import join_threads_at_exit

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["prefetched"]

Item = TypeVar("Item")

JOIN_SECONDS = 2.0  # a read that hangs longer is left behind; its thread is a daemon and ends with the process


class _End:
    """Stands behind the last item; carries what ended the iteration early."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def prefetched(items: Iterator[Item], ahead: int) -> Generator[Item, None, None]:
    """The same items in the same order, made by a thread.

    The thread makes at most `ahead` items that nobody has taken yet. It ends when the items do or when this generator
    is closed, whichever is first; an exception of `items` is raised here, after the items before it.

    Args:
        items: Used by the thread alone from now on.
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
        except BaseException as error:  # whatever it is, the taker must not wait for ever
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
