"""Who owns a run directory: one process at a time, and no longer than it lives.

`owner.json` says who. Its owner touches it every few seconds, and holds a lock of the system on it. Another process
waits for the next touch: if there is none for the length of a lease, the owner is gone, wherever it ran and whatever
has its number now. On the machine where the owner ran, a lock that can be had says so at once. So nothing is ever to be
deleted by hand, no clock is compared with another, and no process number is trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, StorageError

try:
    import fcntl
except ImportError:  # no such locks on this system: beats alone decide
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["OWNER", "DirectoryLock"]

OWNER = "owner.json"

BEAT_SECONDS = 1.0
LEASE_SECONDS = 12.0
_ATTEMPTS, _PAUSE_SECONDS = 100, 0.02


class DirectoryLock:
    """The right to write into a run directory, held until `release`.

    Args:
        folder: The run directory.

    Raises:
        ConfigurationError: another process has it; its host, number and start.
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / OWNER
        self._token = secrets.token_hex(8)
        self._lost_to: str | None = None
        self._end = threading.Event()
        self._descriptor = self._take()
        self._thread = threading.Thread(target=self._beat, name="descend-lease", daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Who has taken the directory over, because this process was silent for longer than a lease; None is nobody."""
        return self._lost_to

    def require(self) -> None:
        """Raise StorageError if it is lost."""
        if self._lost_to:
            raise StorageError(
                f"{self._path.parent} now belongs to {self._lost_to}: this process was silent for more than "
                f"{LEASE_SECONDS:g} seconds; it ends here and writes nothing more"
            )

    def release(self) -> None:
        """Give the directory back."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        if not self._lost_to and _token(self._path) == self._token:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _take(self) -> int:
        try:
            found = _read(self._path)
            if found is not None and not self._is_free(found):
                owner = _name(_read(self._path) or found)
                raise ConfigurationError(
                    f"{self._path.parent} is in use by {owner}: wait for its end, stop it, or name another directory; "
                    "there is nothing to delete"
                )
            with _replaced_by_one(self._path, found) if found is not None else contextlib.nullcontext():
                if found is None or _read(self._path) == found:
                    descriptor = self._write(new=found is None)
                else:  # somebody was quicker
                    return self._take()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot write {self._path}: {error.strerror or error}") from error
        if found is not None:
            time.sleep(0.05)  # without locks, the later one of two that found the same silence has it
        if (owner := _read(self._path)) is not None and owner.get("token") != self._token:
            os.close(descriptor)
            raise ConfigurationError(f"{self._path.parent} was just taken by {_name(owner)}: name another directory")
        return descriptor

    def _is_free(self, found: Mapping[str, Any]) -> bool:
        """Whether the owner that is written there is gone."""
        if found.get("boot") == _boot() and _lock_is_free(self._path):
            return True
        before, began = _touched(self._path), time.monotonic()
        while time.monotonic() - began < LEASE_SECONDS:
            time.sleep(BEAT_SECONDS / 4)
            now = _touched(self._path)
            if now is None or (found.get("boot") == _boot() and _lock_is_free(self._path)):
                return True
            if now != before:
                return False
        return True

    def _write(self, new: bool) -> int:
        """Put this process's name there, at once and whole; the lock is on the new file."""
        beside = self._path.with_name(f".{OWNER}.{self._token}.part")
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        with contextlib.suppress(OSError):  # a file system without locks
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "boot": _boot(),
            "token": self._token,
        }
        os.write(descriptor, (json.dumps(facts, indent=2) + "\n").encode())
        try:
            if new:
                os.link(beside, self._path)
                beside.unlink()
                return descriptor
        except FileExistsError:  # somebody was quicker, and is found out by whoever reads the name again
            beside.unlink()
            return descriptor
        except OSError:  # a file system without links
            pass
        beside.replace(self._path)
        return descriptor

    def _beat(self) -> None:
        while not self._end.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system that is away for a while
                owner = _read(self._path)
                if owner is not None and owner.get("token") != self._token:
                    self._lost_to = _name(owner)
                    return
                if owner is not None:
                    os.utime(self._path)


def _read(path: Path) -> dict[str, Any] | None:
    """Who is written there; None if nobody is."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}  # not ours, and nobody beats in it
    return found if isinstance(found, dict) else {}


def _token(path: Path) -> object:
    return (_read(path) or {}).get("token")


def _touched(path: Path) -> int | None:
    """When the file was touched last, by the clock of wherever it lies; only a change of it means something."""
    try:
        with path.open("rb") as file:  # opening asks a network file system for the present state
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _lock_is_free(path: Path) -> bool:
    """Whether no process of this machine holds the lock; False where there are no locks."""
    if fcntl is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _replaced_by_one(path: Path, found: Mapping[str, Any]) -> Generator[None]:
    """Within this nobody else on this machine replaces the file that says `found`, if it still does.

    Where the system has no locks, or an owner that was given up still holds its own, others may.
    """
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS):
            if fcntl is None or _read(path) != found:
                break
            try:
                file = held.enter_context(path.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody looks at it, or replaces it
                held.close()
                time.sleep(_PAUSE_SECONDS)
            except OSError:  # gone, or a file system without locks
                break
            else:
                break  # a file that was replaced meanwhile no longer says `found`
        yield


def _boot() -> str:
    """A name for this machine since it was started, which no other machine has."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _name(owner: Mapping[str, Any]) -> str:
    host, pid, started = (owner.get(key, "unknown") for key in ("host", "pid", "started"))
    return f"process {pid} on {host}, started {started}"
