"""Signals that request a stop, and processes that leave them to their parent."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["STOP_SIGNALS", "signals_blocked"]

# SIGUSR1 does not exist everywhere.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


@contextmanager
def signals_blocked() -> Generator[None]:
    """Threads and processes started in here never get Ctrl-C, SIGTERM or SIGUSR1, which the parent handles.

    A process that blocked them itself would still get what comes before it does, and in the threads that it has by
    then.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
