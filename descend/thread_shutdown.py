"""Joins gloo and background threads before the interpreter shuts down, to avoid aborts (exit code 134).

A thread that returns from torch acquires the global interpreter lock. If the interpreter has shut down meanwhile, that
aborts the process ("terminate called without an active exception", exit code 134), although the run succeeded or had
an exit code of its own. Two kinds of threads may still run when a script ends:

    gloo's             A collective wakes the waiting thread before the worker thread has released the tensors.
                       `destroy_process_group` avoids most of it; a script that does not call it, or still holds a
                       module that holds the group, must not lose its exit code.
    background ones    Daemon threads of ours that could not be waited for: a read that exceeded its time limit, a
                       checkpoint that was being written at a second Ctrl-C.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from functools import cache
from pathlib import Path

__all__ = ["join_threads_at_exit"]

_GLOO = "pt_gloo_runloop"  # torch's name for these threads
_OURS = "descend-"
_TASKS = Path("/proc/self/task")
_INTERVAL_SECONDS = 0.01  # the interpreter lock is free meanwhile; twice the switch interval
_LIMIT_SECONDS = 5.0  # for a busy host; a thread in a collective that never completes sleeps, and is not waited for


@cache
def join_threads_at_exit() -> None:
    """At interpreter exit, wait until no thread of gloo or ours is about to acquire the interpreter lock."""
    atexit.register(_join)


def _join() -> None:
    until, before = time.monotonic() + _LIMIT_SECONDS, _thread_states()
    while before and time.monotonic() < until:
        for thread in _background_threads():
            _raise_exit(thread)
        time.sleep(_INTERVAL_SECONDS)
        now = _thread_states()
        if now == before and all(state == "S" for state, *_ in now.values()):
            return
        before = now


def _background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.daemon and thread.name.startswith(_OURS)]


def _raise_exit(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread as soon as it returns from native code; one that sleeps on does no harm."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _thread_states() -> dict[str, list[str]]:
    """State and context switches by thread; the switches are as before for a thread that slept all the time."""
    ours = {str(thread.native_id) for thread in _background_threads()}
    if not _TASKS.is_dir():  # not Linux: whether they sleep is unknown
        return {name: ["S"] for name in ours | {_GLOO}}
    found: dict[str, list[str]] = {}
    for task in _TASKS.iterdir():
        try:
            if task.name not in ours and (task / "comm").read_text(encoding="utf-8").strip() != _GLOO:
                continue
            lines = (task / "status").read_text(encoding="utf-8").splitlines()
        except OSError:  # it has ended
            continue
        status = dict(line.split(":", 1) for line in lines)
        found[task.name] = [
            status["State"].split()[0],
            status["voluntary_ctxt_switches"],
            status["nonvoluntary_ctxt_switches"],
        ]
    return found
