"""Gloo's threads come to rest before Python ends.

Whoever waits for a collective is woken before the thread that did it has let go of the tensors, for which that thread
needs Python's lock. Where Python has ended meanwhile, asking for the lock aborts the process: "terminate called without
an active exception", exit code 134, after a run that was good. Torch's users avoid most of it by leaving the group;
who forgets to, or still holds a module that holds the group, is not to lose a run's exit code by it.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

__all__ = ["rest_at_exit"]

_NAME = "pt_gloo_runloop"  # what torch calls them
_TASKS = Path("/proc/self/task")
_INTERVAL_SECONDS = 0.01  # Python's lock is free meanwhile; twice as long as one who waits for it sleeps at a time
_LIMIT_SECONDS = 5.0  # one that is in a collective whose other ranks never come is at rest too; this is for a busy host


def rest_at_exit() -> None:
    """When Python ends, wait until no thread of gloo is about to ask for its lock."""
    atexit.register(_rest)


def _rest() -> None:
    if not _TASKS.is_dir():  # no Linux
        time.sleep(_INTERVAL_SECONDS)
        return
    until, before = time.monotonic() + _LIMIT_SECONDS, _doing()
    while before and time.monotonic() < until:
        time.sleep(_INTERVAL_SECONDS)
        now = _doing()
        if now == before and all(state == "S" for state, *_ in now.values()):
            return
        before = now


def _doing() -> dict[str, list[str]]:
    """State of each thread, and how often it was taken off a core: as often as before where it slept all the time."""
    found: dict[str, list[str]] = {}
    for task in _TASKS.iterdir():
        try:
            if (task / "comm").read_text().strip() != _NAME:
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
