"""Joins gloo and background threads before interpreter shutdown, to avoid aborts (exit code 134).

A thread that returns from torch's native code takes Python's global interpreter lock. After the interpreter is
finalized, taking the lock aborts the process: "terminate called without an active exception", exit code 134, although
the run had succeeded or had an exit code of its own. Two kinds of threads may be running at the end of a script:

    gloo's             A caller that waits for a collective is woken before the thread that ran it releases the tensors.
                       Destroying the process group avoids most of it; a script that does not, or still holds a module
                       that holds the group, must not lose the exit code of its run.
    descend's          Abandoned after a timeout: a read that hangs, a checkpoint that is being written at a second
                       Ctrl-C.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from functools import cache
from pathlib import Path

__all__ = ["join_threads_at_exit"]

_NAME = "pt_gloo_runloop"  # torch's name for its threads
_OURS = "descend-"
_TASKS = Path("/proc/self/task")
_INTERVAL_SECONDS = 0.01  # the lock is free meanwhile; twice the time that a waiter for it sleeps
_LIMIT_SECONDS = 5.0  # for a busy host; a thread in a collective whose other ranks never come sleeps, too


@cache
def join_threads_at_exit() -> None:
    """At interpreter exit, wait until all threads of gloo and of descend sleep, so that none takes the lock."""
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
    """Raise SystemExit in it when it returns from native code; a thread that sleeps until the end does no harm."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _doing() -> dict[str, list[str]]:
    """State and number of context switches of each thread; the number is unchanged if it slept all the time."""
    ours = {str(thread.native_id) for thread in _left_behind()}
    if not _TASKS.is_dir():  # not Linux: whether they sleep is unknown
        return {name: ["S"] for name in ours | {_NAME}}
    found: dict[str, list[str]] = {}
    for task in _TASKS.iterdir():
        try:
            if task.name not in ours and (task / "comm").read_text().strip() != _NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        status = dict(line.split(":", 1) for line in lines)
        found[task.name] = [
            status["State"].split()[0],
            status["voluntary_ctxt_switches"],
            status["nonvoluntary_ctxt_switches"],
        ]
    return found
