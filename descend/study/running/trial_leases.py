"""Leases of trials: which process runs a trial, as a heartbeat lock each (`descend/runtime/directory_lock.py`).

A lease is void once its heartbeat is older than LEASE_SECONDS. Clocks of machines may differ: ages are taken against a
file written now on the same disk. A directory on NFS works as `directory_lock.py` describes; the lease covers 60
seconds of cached attributes.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import TYPE_CHECKING

from descend.runtime.directory_lock import HeartbeatLock, HeldFolder
from descend.study.running.storage import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TrialLeases"]

LEASE_SECONDS = 60.0  # a lease whose heartbeat is older than this is void
_HEARTBEAT_SECONDS = 10.0


class TrialLeases:
    """The leases that one process holds, among those of all processes of a study.

    Args:
        folder: The directory of the leases.

    Attributes:
        anchor: The directory as it is on the disk, once this process writes there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.anchor: HeldFolder | None = None
        self._held: dict[Path, HeartbeatLock] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _file(self, name: str) -> Path:
        return (self.folder if self.anchor is None else self.anchor.place) / hashlib.sha256(name.encode()).hexdigest()[
            :24
        ]

    def take(self, name: str) -> bool:
        """Take the lease of a trial by its id; False where another process holds it. A void one is taken over."""
        file = self._file(name)
        lock = HeartbeatLock(file)
        with storage_errors(self.folder):
            taken = (not file.exists() and lock.create()) or self._take_over(lock)
        if taken:
            self._held[file] = lock
        return taken

    def _take_over(self, lock: HeartbeatLock) -> bool:
        found = lock.read()
        return found is not None and self._is_void(lock) and lock.take_over(found)

    def _is_void(self, lock: HeartbeatLock) -> bool:
        age = lock.age_seconds()
        return age is not None and age > LEASE_SECONDS

    def release(self, name: str) -> None:
        """Release the lease of a trial, if this process holds it."""
        if lock := self._held.pop(self._file(name), None):
            lock.release()

    def renew(self) -> None:
        """Send a heartbeat for all leases of this process; one that another process has taken over is given up."""
        for file, lock in list(self._held.items()):
            with contextlib.suppress(OSError):  # a file system that is unreachable for a while
                if not lock.renew():
                    self._held.pop(file, None)

    def start_heartbeats(self) -> None:
        """Renew the leases regularly, in a thread, until `close`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._send_heartbeats, name="descend-claims", daemon=True)
        self._thread.start()

    def _send_heartbeats(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            self.renew()

    def close(self) -> None:
        """Stop the heartbeats and release all leases."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for lock in self._held.values():
            with storage_errors(self.folder):
                lock.release()
        self._held.clear()
