"""Heartbeats of ranks: what each rank writes into the key-value store that the process group shares.

    heartbeat N             JSON: a running number, step count, collectives entered, and the identity of the process
    exited N                rank N has left the run, or another rank found that it crashed
    first cause             why the run ends; written once, by compare-and-set, and printed by every rank
    ranks that finished     a counter, for the barrier at the end of a run
    ranks that failed       a counter of the ranks with an error of their own
    error of rank 0         so that another rank with the same error does not print it again

`descend.runtime.watchdog` decides by these which rank has crashed or hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  # its home is a private module

    from descend.runtime.communicator import Communicator

__all__ = ["HeartbeatStore", "is_dead", "is_on_this_host", "is_suspended", "process_identity", "work_done"]

_CAUSE = "first cause"
_FINISHED = "ranks that finished"
_FAILED = "ranks that failed"
_RANK_ZERO_ERROR = "error of rank 0"
_POLL_SECONDS = 0.02
_MOVED = ("read_bytes", "write_bytes")  # by the disk; what goes through sockets, as heartbeats do, does not count


class HeartbeatStore:
    """The messages of the watchdogs of a run.

    Args:
        store: The key-value store that all ranks share.
        communicator: The communicator of this rank.

    Attributes:
        lost: The store no longer answers, because the process that hosts it has crashed, was killed or hangs.
    """

    def __init__(self, store: Store, communicator: Communicator) -> None:
        self.lost = False
        self._store, self._communicator = store, communicator
        self._newest: dict[int, tuple[str, float]] = {}  # by rank: the newest heartbeat, and when it was first seen

    def send(self, number: int) -> None:
        """Write the heartbeat of this rank; each has a higher number than the one before."""
        status = self._communicator.status
        heartbeat = {"number": number, "waits": status.waits, "busy": status.is_busy, "last_sync": status.last_sync}
        collectives = status.begun() if status.begun else -1
        heartbeat |= {"steps": status.steps, "waiting": status.waiting is not None, "collectives": collectives}
        heartbeat["work"] = work_done() if status.is_busy else ""
        self._store.set(f"heartbeat {self._communicator.rank}", json.dumps({**heartbeat, **process_identity()}))

    def wait_for(self, ranks: Sequence[int], seconds: float) -> None:
        """Wait for the first heartbeat of each of these ranks."""
        self._store.wait([f"heartbeat {rank}" for rank in ranks], timedelta(seconds=seconds))

    def read(self, rank: int, now: float) -> tuple[dict[str, Any] | None, float]:
        """The newest heartbeat of a rank, and since when there has been no newer one."""
        key = f"heartbeat {rank}"
        text = self._store.get(key).decode() if self._store.check([key]) else ""
        known = self._newest.get(rank)
        if known is None or known[0] != text:
            known = self._newest[rank] = (text, now)
        return (json.loads(text) if text else None), known[1]

    def last_read(self, rank: int) -> dict[str, Any] | None:
        """The newest heartbeat that `read` has found; asks no store, which may be lost."""
        text, _ = self._newest.get(rank, ("", 0.0))
        return json.loads(text) if text else None

    def record_cause(self, why: str, rank: int | None, hangs: bool = False) -> dict[str, Any]:
        """Write why the run ends, unless a cause is there already; returns the cause that counts."""
        own = json.dumps({"why": why, "rank": rank, "hangs": hangs})
        return json.loads(self._store.compare_set(_CAUSE, "", own).decode())

    def first_cause(self) -> dict[str, Any] | None:
        """Why the run ends; None while nothing has failed."""
        return json.loads(self._store.get(_CAUSE).decode()) if self._store.check([_CAUSE]) else None

    def mark_exited(self, rank: int | None = None) -> None:
        """Write that a rank has left; None is this one. Does nothing if the store is lost."""
        if not self.lost:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"exited {self._communicator.rank if rank is None else rank}", "1")

    def has_exited(self, rank: int) -> bool:
        """Whether a rank has left, or was found to have crashed."""
        return self._store.check([f"exited {rank}"])

    def wait_for_exits(self, seconds: float) -> None:
        """Wait until every rank has left, at most so long: this process may host the store that others still need."""
        if self.lost:
            return
        keys = [f"exited {rank}" for rank in range(self._communicator.world_size)]
        with contextlib.suppress(RuntimeError):
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self._store.check(keys):  # Store.wait would print a warning
                time.sleep(0.05)

    def count_finished(self, more: int = 0) -> int:
        """How many ranks have reached the end of the run, with `more` added."""
        return self._store.add(_FINISHED, more)

    def count_failed(self, more: int = 0) -> int:
        """How many ranks have an error of their own, with `more` added; 0 if the store does not answer."""
        with contextlib.suppress(RuntimeError):
            return self._store.add(_FAILED, more)
        return 0

    def write_rank_zero_error(self, text: str) -> None:
        """Write the error of rank 0, for the other ranks to compare with."""
        self._store.set(_RANK_ZERO_ERROR, text)

    def is_rank_zero_error(self, text: str, seconds: float) -> bool:
        """Whether rank 0 has this error too; waits at most so long for it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._store.check([_RANK_ZERO_ERROR]):
            time.sleep(_POLL_SECONDS)
        return self._store.check([_RANK_ZERO_ERROR]) and self._store.get(_RANK_ZERO_ERROR).decode() == text


def is_on_this_host(heartbeat: dict[str, Any]) -> bool:
    """Whether the process of a heartbeat runs on this host; False for another process with the same number."""
    if heartbeat["host"] != socket.gethostname() or not heartbeat["started"]:
        return False
    return _process_state(heartbeat["pid"])[1] == heartbeat["started"]


def is_suspended(heartbeat: dict[str, Any]) -> bool:
    """Whether the process of a heartbeat, of this host, is stopped by a signal."""
    return _process_state(heartbeat["pid"])[0] == "T"


def is_dead(heartbeat: dict[str, Any]) -> bool:
    """Whether the process of a heartbeat was on this host and has ended, waited for by its parent or not."""
    if heartbeat["host"] != socket.gethostname() or not heartbeat["started"]:
        return False
    state, started = _process_state(heartbeat["pid"])
    return started != heartbeat["started"] or state in ("Z", "X")


def work_done() -> str:
    """A text that changes while the main thread of this process computes or any thread reads or writes; from Linux's
    /proc, and empty elsewhere.

    A thread that hangs in a system call, such as a write to a file system that does not answer, changes nothing.
    """
    try:
        cpu = Path(f"/proc/self/task/{os.getpid()}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        moved = [
            line for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines() if line.startswith(_MOVED)
        ]
    except OSError:
        return ""
    return " ".join([*cpu, *moved])


def process_identity() -> dict[str, Any]:
    """Number, host and start time of this process; the start time tells it from a later process of that number."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _process_state(os.getpid())[1]}


def _process_state(pid: int) -> tuple[str, str]:
    """State and start time of a process of this host, from Linux's /proc; empty if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
