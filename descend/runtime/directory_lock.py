"""Heartbeat lock on a file: held by one process at a time, and no longer than that process runs.

    HeartbeatLock     the lock file: created exclusively, touched by its holder, taken over when it is stale
    HeldFolder        a folder as it is on the disk, whatever its path comes to mean
    DirectoryLock     the lock of a run directory, `owner.json`, with a thread that touches it

The claims of trials in a study directory (`descend/study/running/trial_store.py`) are `HeartbeatLock`s too.

A lock file holds the host, number and start of its holder's process and a random token. Two ways show that its holder
is gone:

    by a system lock     the holder of a `DirectoryLock` also keeps a `flock` on the file; on the same machine a `flock`
                         that can be acquired says at once that the holder has exited
    by the heartbeat     otherwise the time of change says it. `DirectoryLock` watches the file for a lease without a
                         touch, which compares no clocks. A claim, which must not wait, compares the time of change with
                         that of a file written now on the same disk, so clocks of different machines are not compared
                         either.

So nothing has to be deleted by hand, and no process number is trusted.

A folder can be deleted, renamed or exchanged for another under its owner. `DirectoryLock.require`, which is called
before each write, compares the folder at the path with the one that was locked, and its `owner.json` with the own one.

On NFS: `link` and exclusive creation are atomic on the server (version 3 and later), a touch sets the server's time,
and opening a file asks the server for its present attributes. `flock` may be missing or local to one machine; then the
heartbeat alone decides. Mounted with `noac` or not, attributes are cached for at most 60 seconds (`acregmax`), which is
why the lease of a claim is no shorter; a run directory is opened for every look, and needs no such margin.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, DirectoryLost, StorageError
from descend.files import bounded_text, regular_file

try:
    import fcntl
except ImportError:  # a system without flock: heartbeats alone decide
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["ENDS_HERE", "OWNER", "DirectoryLock", "HeartbeatLock", "HeldFolder", "is_stale_lock"]

OWNER = "owner.json"
ENDS_HERE = "this process ends here and writes nothing more there"

HEARTBEAT_SECONDS = 1.0
LEASE_SECONDS = 12.0
_ATTEMPTS, _PAUSE_SECONDS = 100, 0.02
_MAX_BYTES = 100_000  # of a lock file
_STALE_SECONDS = 86_400.0  # of a file whose machine is unknown


class HeartbeatLock:
    """A lock file. Creating the object acquires nothing.

    Args:
        path: The lock file.
        keep_open: Keep the file open, with a `flock` on it where the system has one, while the lock is held.

    Attributes:
        lost_to: A description of the process that has taken the lock over; None if none is known to have.
    """

    def __init__(self, path: Path, keep_open: bool = False) -> None:
        self.path = path
        self.lost_to: str | None = None
        self._keep_open = keep_open
        self._descriptor: int | None = None
        self._token = secrets.token_hex(8)

    def create(self) -> bool:
        """Acquire the lock if its file does not exist; False if it does.

        Raises:
            OSError: the file cannot be written.
        """
        beside = self.path.with_name(f".{self.path.name}.{self._token}.part")
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            self._fill(descriptor)
            try:
                os.link(beside, self.path)  # exclusive, and the file is complete as soon as it has its name
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links: for a moment the file is there and empty
                os.close(descriptor)
                descriptor = -1
                try:
                    descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
                except FileExistsError:
                    return False
                self._fill(descriptor)
            if self._keep_open:
                self._descriptor, descriptor = descriptor, -1
            return True
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            beside.unlink(missing_ok=True)

    def _fill(self, descriptor: int) -> None:
        if self._keep_open and fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "boot": _boot(),
            "token": self._token,
        }
        text = (json.dumps(facts, indent=2) + "\n").encode()
        while text:  # a full disk or a signal can end a single call early
            text = text[os.write(descriptor, text) :]

    def take_over(self, found: Mapping[str, Any]) -> bool:
        """Acquire the lock from a holder that is gone; of several processes that try, one succeeds.

        Args:
            found: What the file held when its holder was found to be gone.

        Raises:
            OSError: the file cannot be written.
        """
        gone = self.path.with_name(f".{self.path.name}.{self._token}.gone")
        with _exclusive(self.path, found):
            if self.read() != found:
                return False
            try:
                self.path.rename(gone)  # atomic: of two processes one gets the file
            except FileNotFoundError:
                return False
            try:
                if _read(gone) != found:  # no flock here, and another process was faster: give its file back
                    with contextlib.suppress(OSError):  # a third process has the lock, or there are no hard links
                        os.link(gone, self.path)
                    return False
                return self.create()
            finally:
                gone.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        """What the lock file holds; None if there is none, empty if it is not a lock file."""
        return _read(self.path)

    def is_held(self) -> bool:
        """Whether the lock file is the one of this object."""
        return self.owns(self.read() or {})

    def owns(self, found: Mapping[str, Any]) -> bool:
        """Whether the content of a lock file is that of this object's."""
        return found.get("token") == self._token

    def renew(self) -> bool:
        """Touch the file; False, and `lost_to` set, if another process has taken the lock over or removed it."""
        owner = self.read()
        if owner is None:
            return False
        if not self.owns(owner):
            self.lost_to = describe(owner)
            return False
        os.utime(self.path)
        return True

    def release(self, remove: bool = True) -> None:
        """Give the lock up.

        Args:
            remove: Remove the file, if it is still that of this object. Where that cannot be done, as on a disk that
                turned read-only, the file stays, and the next process takes it over.
        """
        with contextlib.suppress(OSError):
            if remove and not self.lost_to and self.is_held():
                self.path.unlink(missing_ok=True)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def age_seconds(self) -> float | None:
        """Seconds since the last heartbeat, by the clock of the file system; None if there is no file.

        Raises:
            OSError: no file can be written beside it.
        """
        clock = self.path.with_name(f".clock-{self._token}")
        clock.touch()
        try:
            return clock.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return None
        finally:
            clock.unlink(missing_ok=True)


class HeldFolder:
    """A folder as it is on the disk, whatever its path comes to mean. Keeps a descriptor of it where there are such.

    Args:
        path: The folder.
        inside: Another that it is in, so that no third one is taken for it; None where the path is enough.

    Attributes:
        path: Its path, as the user knows it.
        place: A path that leads to it, and to no other, whatever becomes of its own; its own where there are none such.

    Raises:
        OSError: there is none.
    """

    def __init__(self, path: Path, inside: HeldFolder | None = None) -> None:
        self.path = self.place = path
        self._descriptor: int | None = None
        there = path if inside is None else inside.place / path.name
        if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder in use cannot be moved
            self._descriptor = os.open(there, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        self._identity = there.stat() if self._descriptor is None else os.fstat(self._descriptor)
        through = Path(f"/proc/self/fd/{self._descriptor}")
        with contextlib.suppress(OSError):  # no Linux, or without /proc
            self.place = through if os.path.samestat(through.stat(), self._identity) else path

    @contextlib.contextmanager
    def writing(self) -> Generator[Path]:
        """The `place`, to write there; an error of storage within the block names the path that the user knows."""
        try:
            yield self.place
        except StorageError as error:
            through = re.compile(rf"{re.escape(str(self.place))}(?!\d)")
            error.__init__([through.sub(lambda found: str(self.path), problem) for problem in error.problems])
            raise

    def change(self) -> str | None:
        """The fate of the folder, as the beginning of a sentence; None while it is there.

        Raises:
            OSError: the file system cannot be reached.
        """
        try:
            if os.path.samestat(self.path.stat(), self._identity):
                return None
            there = f"another directory is at {self.path}"
        except (FileNotFoundError, NotADirectoryError):
            there = f"{self.path} is gone"
        moved = self.moved_to()
        return f"{there} (the one in use was renamed to {moved})" if moved else f"{there} (the one in use was deleted)"

    def moved_to(self) -> Path | None:
        """Where the folder is now, where the system can tell and it was not deleted."""
        try:
            found = self.place.readlink()
            return found if os.path.samestat(found.stat(), self._identity) else None
        except OSError:
            return None

    def require(self) -> None:
        """Raise DirectoryLost if another folder, or none, is at the path."""
        try:
            change = self.change()
        except OSError as error:
            raise StorageError(f"cannot reach {self.path}: {error.strerror or error}") from error
        if change:
            raise DirectoryLost(_lost(change))

    def close(self) -> None:
        """Close the descriptor; the object is used no more."""
        self.place = self.path
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _lost(what: str) -> str:
    return f"{what}: {ENDS_HERE}"


class DirectoryLock:
    """The lock of a run directory, held until `release`. A thread renews it.

    Args:
        folder: The run directory.

    Attributes:
        folder: The run directory, wherever it is by now.

    Raises:
        ConfigurationError: another process holds it; the message names its host, number and start.
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._end = threading.Event()
        self._lost: str | None = None
        try:
            self.folder = HeldFolder(folder)
            self._lock = HeartbeatLock(self.folder.place / OWNER, keep_open=True)
            with contextlib.ExitStack() as failed:
                failed.callback(self.folder.close)
                self._acquire()
                failed.pop_all()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot write {folder / OWNER}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._renew, name="descend-lock", daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Why the directory is no longer that of this process, as far as is known; None while it is."""
        return self._lost

    def require(self, look: bool = True) -> None:
        """Raise an error if the directory is no longer that of this process.

        Args:
            look: Look at the disk; else what the last look found counts, the heartbeat's at least once per second.

        Raises:
            DirectoryLost: it was taken over by another process, deleted, renamed or exchanged, or its lock was removed.
            StorageError: it cannot be reached now.
        """
        if look:
            try:
                self._look()
            except OSError as error:
                raise StorageError(f"cannot reach {self.folder.path}: {error.strerror or error}") from error
        if self._lost:
            raise DirectoryLost(self._lost)

    def _look(self) -> None:
        folder = self.folder.path
        if self._lost:
            return
        if change := self.folder.change():
            self._lost = _lost(change)
        elif (owner := self._lock.read()) is None:
            self._lost = _lost(f"{folder} has lost its {OWNER}, so another process may own it")
        elif not self._lock.owns(owner):
            self._lock.lost_to = describe(owner)
            self._lost = (
                f"{folder} now belongs to {self._lock.lost_to}: this process sent no heartbeat for more than "
                f"{LEASE_SECONDS:g} seconds; it ends here and writes nothing more"
            )

    def follow(self) -> Path | None:
        """Hold the directory at its new path if it was renamed and is still that of this process; None if not."""
        moved = self.folder.moved_to()
        if moved is None or self._end.is_set() or not self._lock.is_held():
            return None
        self.folder.path, self._lost = moved, None
        return moved

    def release(self) -> None:
        """Give the directory up."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._look()
        self._lock.release(remove=not self._lost)
        self.folder.close()

    def _acquire(self) -> None:
        folder = self.folder.path
        for _ in range(_ATTEMPTS):
            found = self._lock.read()
            if found is None:
                if self._lock.create():
                    return
            elif not self._is_free(found):
                owner = describe(self._lock.read() or found)
                raise ConfigurationError(
                    f"{folder} is in use by {owner}: wait for its end, stop it, or name another directory; there is "
                    "nothing to delete"
                )
            elif self._lock.take_over(found):
                return
        raise ConfigurationError(f"{folder} is being taken by several processes at once: name another directory")

    def _is_free(self, found: Mapping[str, Any]) -> bool:
        """Whether the holder that the file names is gone; waits up to a lease."""
        path = self._lock.path
        if found.get("boot") == _boot() and _flock_is_free(path):
            return True
        before, began = _touched(path), time.monotonic()
        while time.monotonic() - began < LEASE_SECONDS:
            time.sleep(HEARTBEAT_SECONDS / 4)
            now = _touched(path)
            if now is None or (found.get("boot") == _boot() and _flock_is_free(path)):
                return True
            if now != before:
                return False
        return True

    def _renew(self) -> None:
        while not self._end.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system that is unreachable for a while
                self._look()
                if not self._lost:
                    self._lock.renew()


def describe(owner: Mapping[str, Any]) -> str:
    """A description of the process of a lock file."""
    host, pid, started = (owner.get(key, "unknown") for key in ("host", "pid", "started"))
    return f"process {pid} on {host}, started {started}"


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a lock file; None if there is none, empty if it is not a lock file."""
    try:
        found = json.loads(bounded_text(path, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}  # not written by us, and not touched
    return found if isinstance(found, dict) else {}


def is_stale_lock(path: Path) -> bool:
    """Whether a lock file beside the real one, half written or renamed, was left by a process that is gone.

    One of another machine counts as such after a day, and one without content, which is written at once, after seconds.
    """
    found, age = _read(path) or {}, time.time() - path.stat().st_mtime
    if found and found.get("boot") != _boot():
        return age > _STALE_SECONDS
    return _flock_is_free(path) and (bool(found) or age > HEARTBEAT_SECONDS)


def _touched(path: Path) -> int | None:
    """Time of change of a file by the clock of its file system; only a difference between two such times counts."""
    try:
        with regular_file(path).open("rb") as file:  # opening asks a network file system for the present state
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _flock_is_free(path: Path) -> bool:
    """Whether no process of this machine holds the flock; False if the system has none."""
    if fcntl is None:
        return False
    try:
        with regular_file(path).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _exclusive(path: Path, found: Mapping[str, Any]) -> Generator[None]:
    """Within this block no other process of this machine takes over the file that holds `found`.

    Without flock, or while a holder that was given up still has its own, others may.
    """
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS):
            if fcntl is None or _read(path) != found:
                break
            try:
                file = held.enter_context(regular_file(path).open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process reads or replaces it
                held.close()
                time.sleep(_PAUSE_SECONDS)
            except OSError:  # the file is gone, or the file system has no locks
                break
            else:
                break
        yield


def _boot() -> str:
    """An identifier of this machine since its last start, different from that of every other machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return socket.gethostname()
