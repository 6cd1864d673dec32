"""Threads come to rest before Python ends.

A thread that comes back from torch needs Python's lock. Where Python has ended meanwhile, asking for the lock aborts
the process: "terminate called without an active exception", exit code 134, after a run that was good, or that had an
exit code of its own. Two kinds of threads may be on their way when a script is at its end:

    those of gloo      Whoever waits for a collective is woken before the thread that did it has let go of the tensors.
                       Torch's users avoid most of it by leaving the group; who forgets to, or still holds a module that
                       holds the group, is not to lose a run's exit code by it.
    some of ours       Left behind since nobody could wait longer for them: a read that has taken too long, a checkpoint
                       under way at a second Ctrl-C.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from functools import cache
from pathlib import Path

__all__ = ["join_threads_at_exit"]

_NAME = "pt_gloo_runloop"  # what torch calls them
_OURS = "descend-"
_TASKS = Path("/proc/self/task")
_INTERVAL_SECONDS = 0.01  # Python's lock is free meanwhile; twice as long as one who waits for it sleeps at a time
_LIMIT_SECONDS = 5.0  # one that is in a collective whose other ranks never come is at rest too; this is for a busy host


@cache
def join_threads_at_exit() -> None:
    """When Python ends, wait until no thread of gloo, and none of ours, is about to ask for its lock."""
    atexit.register(_rest)


def _rest() -> None:
    until, before = time.monotonic() + _LIMIT_SECONDS, _doing()
    while before and time.monotonic() < until:
        for thread in _left_behind():
            _end(thread)
        time.sleep(_INTERVAL_SECONDS)
        now = _doing()
        if now == before and all(state == "S" for state, *_ in now.values()):
            return
        before = now


def _left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.daemon and thread.name.startswith(_OURS)]


def _end(thread: threading.Thread) -> None:
    """Have it leave as soon as it is back from native code; one that sleeps until Python has ended does no harm."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _doing() -> dict[str, list[str]]:
    """State of each thread, and how often it was taken off a core: as often as before where it slept all the time."""
    ours = {str(thread.native_id) for thread in _left_behind()}
    if not _TASKS.is_dir():  # no Linux: whether they sleep is not known
        return {name: ["S"] for name in ours | {_NAME}}
    found: dict[str, list[str]] = {}
    for task in _TASKS.iterdir():
        try:
            if task.name not in ours and (task / "comm").read_text().strip() != _NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        told = dict(line.split(":", 1) for line in lines)
        found[task.name] = [
            told["State"].split()[0],
            told["voluntary_ctxt_switches"],
            told["nonvoluntary_ctxt_switches"],
        ]
    return found
