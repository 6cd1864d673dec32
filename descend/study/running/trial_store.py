"""Where trials are claimed and recorded: in memory, or in a directory that several processes and machines share.

    study.json            the description with hashes of code and data, written before the first trial; later changes
    records/NAME.jsonl    one line a trial; every process has a file of its own, so that no two write to one
    executors/ID          by which executor a kind of trials runs, so that whoever goes on gets the same bits
    leases/ID             who runs a trial; its time of change is the heartbeat, and an old one is no claim

A record is written in one piece and a line without its end is none, so a process that is killed loses the trial under
way and nothing else. Clocks of machines may differ: ages are taken against a file written now on the same disk.
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
from descend.runtime.run_directory import write_beside
from descend.study.design.study import Study, make_study
from descend.study.running.trial import RETRIED, Record, Trial
from descend.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["Ledger", "Memory", "StudyDirectory", "read_frozen"]

LEASE_SECONDS = 60.0  # a claim whose heartbeat is older than this is void
_BEAT_SECONDS = 10.0
_SYNC_SECONDS = 1.0  # records reach the disk itself at least so often


class Ledger(Protocol):
    """What running a study asks for."""

    def records(self) -> dict[str, Record]:
        """All trials that ended, by their id. One that ended in an error is no longer there once it is claimed anew."""
        ...

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """Take some of the trials; nobody else gets them."""
        ...

    def record(self, *records: Record) -> None:
        """Keep what came of claimed trials: of all of them or, if the process is killed, of none."""
        ...

    def way(self, kind: str) -> str | None:
        """The name of the executor that a kind of trials runs by; None if nobody has decided."""
        ...

    def decide(self, kind: str, way: str) -> str:
        """Let a kind of trials run by an executor, also later; who decides first decides, and that is returned."""
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
        study: The study; None opens what is there.
        hashes: Of code and data, to be kept with the description.

    Raises:
        ConfigurationError: the directory holds another study, or its place is a file's.
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
        self._held: set[Path] = set()
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
        """What study.json holds.

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
        """The study that study.json describes. One of a Python object as workload or optimizer cannot be run.

        Raises:
            ConfigurationError: there is none, or it is no study of this version.
            StorageError: it is damaged.
        """
        described = self.description()["study"]
        try:
            return make_study(described)
        except ConfigurationError as error:
            raise ConfigurationError([f"{self.path / 'study.json'}: {line}" for line in error.problems]) from error

    # ---- records

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`. Reads only what is new."""
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
                os.link(own, file)  # unlike a renaming it does not replace what another process decided
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                own.replace(file)
            own.unlink(missing_ok=True)
        return self.way(kind) or way

    # ---- leases

    def _lease(self, trial: Trial) -> Path:
        return self._leases / hashlib.sha256(trial.id.encode()).hexdigest()[:24]

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`. A lease whose heartbeat stopped is taken over."""
        taken: list[Trial] = []
        for trial in trials:
            if len(taken) == at_most:
                break
            if self._take(self._lease(trial)):
                taken.append(trial)
        ended = self.records()  # one may have ended between the look at the records and the claim
        for trial in [trial for trial in taken if trial.id in ended and ended[trial.id].status not in RETRIED]:
            self._release(trial)
            taken.remove(trial)
        return taken

    def _take(self, lease: Path) -> bool:
        for _ in range(2):
            try:
                with _writing(self._leases):
                    os.close(os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except StorageError as error:
                if not isinstance(error.__cause__, FileExistsError):
                    raise
                if not (self._is_void(lease) and self._clear(lease)):
                    return False
                continue
            self._held.add(lease)
            return True
        return False

    def _clear(self, lease: Path) -> bool:
        """Take a void lease away. Of several processes one succeeds in renaming it; who comes late may have caught the
        new lease of that one, and gives it back.
        """
        gone = lease.with_name(f"{lease.name}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            lease.rename(gone)
        except FileNotFoundError:
            return False
        void = self._is_void(gone)
        if not void:
            with contextlib.suppress(OSError):  # somebody claimed it in between, or the file system has no links
                os.link(gone, lease)
        gone.unlink(missing_ok=True)
        return void

    def _is_void(self, lease: Path) -> bool:
        clock = self._leases / f".clock-{socket.gethostname()}-{os.getpid()}"
        clock.touch()
        try:
            return clock.stat().st_mtime - lease.stat().st_mtime > LEASE_SECONDS
        except FileNotFoundError:
            return False
        finally:
            clock.unlink(missing_ok=True)

    def _release(self, trial: Trial) -> None:
        lease = self._lease(trial)
        self._held.discard(lease)
        lease.unlink(missing_ok=True)

    def beat(self) -> None:
        """Renew all claims of this process."""
        for lease in list(self._held):
            try:
                os.utime(lease)
            except FileNotFoundError:
                self._held.discard(lease)

    def __enter__(self) -> StudyDirectory:
        """Keep the heartbeat going."""
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._live, daemon=True)
        self._heart.start()
        return self

    def _live(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            self.beat()

    def __exit__(self, *error: object) -> None:
        """Give back what is still claimed, and bring the records to the disk."""
        self._stop.set()
        self._heart.join()
        for lease in list(self._held):
            lease.unlink(missing_ok=True)
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
    """All of it: a full disk or a signal can end a single call early."""
    while text:
        text = text[os.write(file, text) :]


@contextlib.contextmanager
def _writing(place: Path) -> Generator[None]:
    """What the disk or the system refuses is a `StorageError`."""
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
    """Of what trials depend on beside their own code."""
    others = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"descend": __version__, "python": platform.python_version(), **others}


_EXTENDS = ("trials", "searches", "confirmation_seeds", "shortlist", "shortlist_seeds")


def _may_change(name: str, pair: tuple[Any, Any]) -> bool:
    """What can be changed without making old records wrong: more of something, another arm, name, target or code."""
    old, new = pair
    if name in _EXTENDS:
        return new >= old
    if name.startswith("arms."):
        return old is None
    return name in ("name", "target", "batch_sizes", "reference") or name.startswith(("hashes.code", "made_with."))
