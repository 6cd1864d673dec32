"""Where trials are claimed and recorded: in memory, or in a directory that several processes and machines share.

    study.json            the description with hashes of code and data, written before the first trial; later changes
    records/NAME.jsonl    one line per trial; every process has a file of its own, so that no two write to one
    executors/ID          the executor of a kind of trials, so that a resumed study computes the same bits
    leases/ID             the process that runs a trial: a heartbeat lock (`descend/runtime/directory_lock.py`), void
                          once its heartbeat is older than LEASE_SECONDS

A record is written in one piece, and a line without its end does not count, so a process that is killed loses the trial
in progress and nothing else. Clocks of machines may differ: ages are taken against a file written now on the same disk.
A directory on NFS works as `directory_lock.py` describes; the lease covers 60 seconds of cached attributes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import socket
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from descend.errors import ConfigurationError, DescendError, StorageError
from descend.runtime.directory_lock import HeartbeatLock
from descend.runtime.run_directory import write_beside
from descend.study.design.study import Study, make_study
from descend.study.running.trial import RETRIED, Record, Trial
from descend.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["Ledger", "Memory", "StudyDirectory", "read_frozen"]

LEASE_SECONDS = 60.0  # a claim whose heartbeat is older than this is void
_HEARTBEAT_SECONDS = 10.0
_SYNC_SECONDS = 1.0  # records are flushed to the disk at least so often


class Ledger(Protocol):
    """What running a study needs of its records: the interface of `Memory` and `StudyDirectory`."""

    def records(self) -> dict[str, Record]:
        """All finished trials by id. A trial that ended in an error can be claimed again, and its record replaced."""
        ...

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """Claim up to `at_most` of the trials; no other process gets these."""
        ...

    def record(self, *records: Record) -> None:
        """Store the records of claimed trials: all of them or, if the process is killed, none."""
        ...

    def way(self, kind: str) -> str | None:
        """The name of the executor of a kind of trials; None if none was chosen yet."""
        ...

    def decide(self, kind: str, way: str) -> str:
        """Choose the executor of a kind of trials, for later too; returns the first choice of any process."""
        ...


class Memory:
    """A ledger of one process, without files."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._ways: dict[str, str] = {}

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`."""
        return dict(self._records)

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`."""
        return list(trials[:at_most])

    def record(self, *records: Record) -> None:
        """See `Ledger.record`."""
        self._records |= {record.trial.id: record for record in records}

    def way(self, kind: str) -> str | None:
        """See `Ledger.way`."""
        return self._ways.get(kind)

    def decide(self, kind: str, way: str) -> str:
        """See `Ledger.decide`."""
        return self._ways.setdefault(kind, way)


class StudyDirectory:
    """A ledger in a directory.

    Args:
        path: The directory, new or of the same study.
        study: The study; None opens an existing directory.
        hashes: Hashes of code and data, stored with the description.

    Raises:
        ConfigurationError: the directory holds another study, or the path is a file.
        StorageError: it cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], study: Study | None = None, hashes: dict[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        self._leases = self.path / "leases"
        self._folder = self.path / "records"
        self._ways = self.path / "executors"
        self._own: int | None = None
        self._synced = time.monotonic()
        self._held: dict[Path, HeartbeatLock] = {}
        self._read: dict[Path, int] = {}
        self._cut: dict[Path, int] = {}
        self._records: dict[str, Record] = {}
        self._begun = time.time_ns()
        if study is not None:
            self._freeze(study, hashes or {})

    # ---- description

    def _freeze(self, study: Study, hashes: dict[str, str]) -> None:
        try:
            with _writing(self.path):
                for folder in (self._leases, self._folder):
                    folder.mkdir(parents=True, exist_ok=True)
        except StorageError as error:
            if isinstance(error.__cause__, (FileExistsError, NotADirectoryError)):
                raise ConfigurationError(f"{self.path} cannot be a directory: a file has this name") from error
            raise
        file = self.path / "study.json"
        plain, facts = study.plain(), _versions()
        if not file.exists():
            write_beside(file, _text({"study": plain, "hashes": hashes, "made_with": facts, "amendments": []}))
            return
        frozen = self.description()
        changes = _changes(frozen["study"], plain) | _changes(frozen["hashes"], hashes, "hashes.")
        known = {name: facts.get(name) for name in frozen["made_with"]}
        changes |= _changes(frozen["made_with"], known, "made_with.")
        if not changes:
            return
        if wrong := [name for name in changes if not _may_change(name, changes[name])]:
            raise ConfigurationError(
                [
                    f"{self.path} holds a study whose {name} is {changes[name][0]!r}, and now it is "
                    f"{changes[name][1]!r}: give the changed study a directory of its own"
                    for name in wrong
                ]
            )
        frozen["amendments"].append({name: list(pair) for name, pair in changes.items()})
        write_beside(file, _text({**frozen, "study": plain, "hashes": hashes, "made_with": facts}))

    def description(self) -> dict[str, Any]:
        """The content of study.json.

        Raises:
            ConfigurationError: there is none.
            StorageError: it is damaged.
        """
        file = self.path / "study.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            whole = {name: _of_kind(found[name], kind) for name, kind in _PARTS.items()}
            for amendment in whole["amendments"]:
                for pair in _of_kind(amendment, dict).values():
                    _, _ = _of_kind(pair, list)
            return whole
        except OSError as error:
            raise ConfigurationError(f"{self.path} holds no study: {file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{file} is damaged: {error!r}; restore it from a copy, or remove it and run the study's file again, "
                "which keeps the records"
            ) from error

    def study(self) -> Study:
        """The study that study.json describes. It cannot be run if its workload or an optimizer is a Python object.

        Raises:
            ConfigurationError: there is none, or this version does not know its fields.
            StorageError: it is damaged.
        """
        described = self.description()["study"]
        try:
            return make_study(described)
        except ConfigurationError as error:
            raise ConfigurationError([f"{self.path / 'study.json'}: {line}" for line in error.problems]) from error

    # ---- records

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`. Reads only new lines."""
        for file in sorted(self._folder.glob("*.jsonl")):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                whole, end, cut = lines.read().rpartition(b"\n")
            self._cut[file] = len(cut)
            for line in filter(None, whole.split(b"\n")):
                self._keep(line, file)
            self._read[file] = self._read.get(file, 0) + len(whole) + len(end)
        return dict(self._records)

    def cut_off(self) -> list[Path]:
        """Files whose last line had no end when `records` read them: still being written, or cut off by a kill."""
        return [file for file, length in self._cut.items() if length]

    def _keep(self, line: bytes, file: Path) -> None:
        try:
            record = Record.read(line.decode())
        except (StorageError, UnicodeDecodeError) as error:
            number = file.read_bytes().split(b"\n").index(line) + 1
            raise StorageError(
                f"{file}:{number}: {error}; the line is damaged, remove it and its trial runs again"
            ) from error
        before = self._records.get(record.trial.id)
        if before is None or before.status in RETRIED:
            self._records[record.trial.id] = record

    def record(self, *records: Record) -> None:
        """See `Ledger.record`."""
        with _writing(self._folder):
            if self._own is None:
                name = f"{socket.gethostname()}-{os.getpid()}-{self._begun}.jsonl"
                self._own = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            _write(self._own, "".join(record.line() + "\n" for record in records).encode())
            now = time.monotonic()
            if now - self._synced > _SYNC_SECONDS:
                os.fsync(self._own)
                self._synced = now
        for record in records:
            self._release(record.trial)

    # ---- executors

    def way(self, kind: str) -> str | None:
        """See `Ledger.way`."""
        file = self._ways / hashlib.sha256(kind.encode()).hexdigest()[:24]
        try:
            return str(json.loads(file.read_text())["executor"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{file} is damaged: {error!r}; remove it, and executors are measured again") from error

    def decide(self, kind: str, way: str) -> str:
        """See `Ledger.decide`."""
        file = self._ways / hashlib.sha256(kind.encode()).hexdigest()[:24]
        own = file.with_name(f".{file.name}.{socket.gethostname()}.{os.getpid()}")
        with _writing(self._ways):
            self._ways.mkdir(exist_ok=True)
            own.write_text(json.dumps({"kind": kind, "executor": way}))
            try:
                os.link(own, file)  # unlike a renaming it does not replace the choice of another process
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                own.replace(file)
            own.unlink(missing_ok=True)
        return self.way(kind) or way

    # ---- claims

    def _lease(self, trial: Trial) -> Path:
        return self._leases / hashlib.sha256(trial.id.encode()).hexdigest()[:24]

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`. A claim whose heartbeat stopped is taken over."""
        taken: list[Trial] = []
        for trial in trials:
            if len(taken) == at_most:
                break
            if self._take(self._lease(trial)):
                taken.append(trial)
        ended = self.records()  # one may have ended between the reading of records and the claim
        for trial in [trial for trial in taken if trial.id in ended and ended[trial.id].status not in RETRIED]:
            self._release(trial)
            taken.remove(trial)
        return taken

    def _take(self, lease: Path) -> bool:
        lock = HeartbeatLock(lease)
        with _writing(self._leases):
            taken = (not lease.exists() and lock.create()) or self._take_over(lock)
        if taken:
            self._held[lease] = lock
        return taken

    def _take_over(self, lock: HeartbeatLock) -> bool:
        found = lock.read()
        return found is not None and self._is_void(lock) and lock.take_over(found)

    def _is_void(self, lock: HeartbeatLock) -> bool:
        age = lock.age_seconds()
        return age is not None and age > LEASE_SECONDS

    def _release(self, trial: Trial) -> None:
        if lock := self._held.pop(self._lease(trial), None):
            lock.release()

    def beat(self) -> None:
        """Send a heartbeat for all claims of this process; one that another process has taken over is given up."""
        for lease, lock in list(self._held.items()):
            with contextlib.suppress(OSError):  # a file system that is unreachable for a while
                if not lock.renew():
                    self._held.pop(lease, None)

    def __enter__(self) -> StudyDirectory:
        """Start the thread of heartbeats."""
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._send_heartbeats, name="descend-claims", daemon=True)
        self._heart.start()
        return self

    def _send_heartbeats(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            self.beat()

    def __exit__(self, *error: object) -> None:
        """Release all claims, and flush the records to the disk."""
        self._stop.set()
        self._heart.join()
        for lock in self._held.values():
            with _writing(self._leases):
                lock.release()
        self._held.clear()
        if self._own is not None:
            with _writing(self._folder):
                os.fsync(self._own)
            os.close(self._own)
            self._own = None


def read_frozen(path: str | os.PathLike[str]) -> Study:
    """See `StudyDirectory.study`."""
    return StudyDirectory(path).study()


def _write(file: int, text: bytes) -> None:
    """Write all of it: a full disk or a signal can end a single call early."""
    while text:
        text = text[os.write(file, text) :]


@contextlib.contextmanager
def _writing(place: Path) -> Generator[None]:
    """Within this block an error of the file system becomes a `StorageError`."""
    try:
        yield
    except DescendError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write in {place}: {error.strerror or error}; is the disk full or read-only?"
        ) from error


_PARTS = {"study": dict, "hashes": dict, "made_with": dict, "amendments": list}  # of study.json


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, and found {value!r:.40}")
    return value


def _text(plain: dict[str, Any]) -> str:
    return json.dumps(plain, indent=2) + "\n"


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ. Arms are compared one by one."""
    plain_old = {**old, **{f"arms.{name}": one for name, one in old.get("arms", {}).items()}}
    plain_new = json.loads(json.dumps({**new, **{f"arms.{name}": one for name, one in new.get("arms", {}).items()}}))
    names = [name for name in dict.fromkeys([*plain_old, *plain_new]) if name != "arms"]
    pairs = {name: (plain_old.get(name), plain_new.get(name)) for name in names}
    return {prefix + name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _versions() -> dict[str, str]:
    """Versions of the packages that trials depend on."""
    others = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"descend": __version__, "python": platform.python_version(), **others}


_EXTENDS = ("trials", "searches", "confirmation_seeds", "shortlist", "shortlist_seeds")


def _may_change(name: str, pair: tuple[Any, Any]) -> bool:
    """Whether old records stay valid: more of something, another arm, name, target or code."""
    old, new = pair
    if name in _EXTENDS:
        return new >= old
    if name.startswith("arms."):
        return old is None
    return name in ("name", "target", "batch_sizes", "reference") or name.startswith(("hashes.code", "made_with."))
