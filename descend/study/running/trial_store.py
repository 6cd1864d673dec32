"""Where trials are claimed and recorded: in memory, or in a directory that several processes and machines share.

study.json            the description                                 `StudyFile`
records/NAME.jsonl    a line per trial, a file per process            `RecordFiles`
leases/ID             the process that runs a trial                   `TrialLeases`
trials/ID/            checkpoints of a trial under way                `TrialCheckpoints`

A record is written in one piece, and a line without its end does not count, so a process that is killed loses the trial
in progress and nothing else. A lease is void once its heartbeat is older than LEASE_SECONDS. Clocks of machines may
differ: ages are taken against a file written now on the same disk. A directory on NFS works as
`descend/runtime/directory_lock.py` describes; the lease covers 60 seconds of cached attributes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from descend.arguments import check_path, require
from descend.errors import ConfigurationError, DescendError, DirectoryLost, StorageError
from descend.files import MAX_LINE, bounded_lines, has_folder
from descend.runtime.directory_lock import HeartbeatLock, HeldFolder
from descend.study.running.study_file import StudyFile
from descend.study.running.trial import RETRIED, Record, Trial

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from descend.study.design.study import Study

__all__ = ["Ledger", "Memory", "RecordFiles", "StudyDirectory", "TrialLeases", "read_frozen", "storage_errors"]


class Ledger(Protocol):
    """What running a study needs of its records: the interface of `Memory` and `StudyDirectory`."""

    @property
    def path(self) -> Path | None:
        """The directory of the study; None where nothing is written."""
        ...

    def records(self) -> dict[str, Record]:
        """All finished trials by id. A trial that ended in an error can be claimed again, and its record replaced."""
        ...

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """Claim up to `at_most` of the trials; no other process gets these."""
        ...

    def record(self, *records: Record) -> None:
        """Store the records of claimed trials: all of them or, if the process is killed, none."""
        ...


class Memory:
    """A ledger of one process, without files."""

    path = None

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`."""
        return dict(self._records)

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`."""
        return list(trials[:at_most])

    def record(self, *records: Record) -> None:
        """See `Ledger.record`."""
        self._records |= {record.trial.id: record for record in records}


class StudyDirectory:
    """A ledger in a directory.

    Args:
        path: The directory, new or of the same study.
        study: The study; None opens an existing directory.
        hashes: Hashes of code and data, stored with the description.
        begun: Whether study.json is known to have been there.

    Raises:
        ConfigurationError: the directory holds another study, or the path is a file.
        StorageError: it cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        study: Study | None = None,
        hashes: dict[str, str] | None = None,
        begun: bool = False,
    ) -> None:
        require(check_path("directory", path))
        self.path = Path(path)
        self._file = StudyFile(self.path)
        self._file.was_there = begun
        self._files = RecordFiles(self.path / "records")
        self._leases = TrialLeases(self.path / "leases")
        self.anchor: HeldFolder | None = None
        if study is not None:
            self._make_folders()
            self._file.write(study, hashes or {}, self._require())

    def _make_folders(self) -> None:
        try:
            with storage_errors(self.path):
                for folder in (self._leases.folder, self._files.folder):
                    folder.mkdir(parents=True, exist_ok=True)
        except StorageError as error:
            if isinstance(error.__cause__, (FileExistsError, NotADirectoryError)):
                raise ConfigurationError(f"{self.path} cannot be a directory: a file has this name") from error
            raise

    def _require(self) -> HeldFolder:
        """The directory; DirectoryLost if another, or none, is at the path since this process first wrote there.

        Called before each write. The same goes for study.json and the folders in it: without its records a study would
        never end.
        """
        if self.anchor is None:
            with storage_errors(self.path):
                self.anchor = HeldFolder(self.path)
                for part in (self._files, self._leases):
                    if has_folder(part.folder):
                        part.anchor = HeldFolder(part.folder, self.anchor)
        for folder in (self.anchor, self._files.anchor, self._leases.anchor):
            if folder is not None:
                folder.require()
        self._file.require()
        return self.anchor

    def description(self) -> dict[str, Any]:
        """See `StudyFile.read`."""
        return self._file.read()

    def study(self) -> Study:
        """See `StudyFile.study`."""
        return self._file.study()

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`. Reads only new lines."""
        return self._files.records()

    def cut_off(self) -> list[Path]:
        """See `RecordFiles.cut_off`."""
        return self._files.cut_off()

    def record(self, *records: Record) -> None:
        """See `Ledger.record`. In a directory that was renamed they are kept all the same, and then it is an error."""
        try:
            self._require()
        except DirectoryLost:
            if self.anchor is not None and self.anchor.moved_to() and self._files.is_open:
                self._files.append(*records)
            raise
        self._files.append(*records)
        for record in records:
            self._leases.release(record.trial.id)

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`. A claim whose heartbeat stopped is taken over."""
        self._require()
        taken: list[Trial] = []
        for trial in trials:
            if len(taken) == at_most:
                break
            if self._leases.take(trial.id):
                taken.append(trial)
        ended = self.records()  # one may have ended between the reading of records and the claim
        for trial in [trial for trial in taken if trial.id in ended and ended[trial.id].status not in RETRIED]:
            self._leases.release(trial.id)
            taken.remove(trial)
        return taken

    def beat(self) -> None:
        """Send a heartbeat for all claims of this process; one that another process has taken over is given up."""
        self._leases.renew()

    def __enter__(self) -> StudyDirectory:
        """Start the thread of heartbeats."""
        self._leases.start_heartbeats()
        return self

    def __exit__(self, *error: object) -> None:
        """Release all claims, and flush the records to the disk."""
        self._leases.close()
        self._files.close()
        for part in (self, self._files, self._leases):
            if part.anchor is not None:
                part.anchor.close()
                part.anchor = None


def read_frozen(path: str | os.PathLike[str]) -> Study:
    """See `StudyDirectory.study`; of a study that another process has begun."""
    return StudyDirectory(path, begun=True).study()


@contextlib.contextmanager
def storage_errors(place: Path) -> Generator[None]:
    """Within this block an error of the file system becomes a `StorageError`."""
    try:
        yield
    except DescendError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write in {place}: {error.strerror or error}; is the disk full or read-only?"
        ) from error


_SYNC_SECONDS = 1.0  # records are flushed to the disk at least so often


class RecordFiles:
    """The records of a study, in `NAME.jsonl` files of one directory.

    Args:
        folder: The directory.

    Attributes:
        anchor: The directory as it is on the disk, once this process writes there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.anchor: HeldFolder | None = None
        self._own: int | None = None
        self._synced = time.monotonic()
        self._read: dict[Path, int] = {}
        self._cut: dict[Path, int] = {}
        self._records: dict[str, Record] = {}
        self._begun = time.time_ns()

    def records(self) -> dict[str, Record]:
        """All records by id. Reads only new lines.

        Raises:
            StorageError: a line is damaged.
        """
        for file in sorted(self.folder.glob("*.jsonl")):
            try:
                self._read_new(file)
            except StorageError:
                raise
            except OSError as error:
                raise StorageError(f"{file} cannot be read: {error.strerror}") from error
        return dict(self._records)

    def _read_new(self, file: Path) -> None:
        """Read the lines of a file that were not read yet."""
        self._cut[file] = 0
        for line in bounded_lines(file, self._read.get(file, 0)):
            if len(line) == MAX_LINE:
                raise StorageError(f"{file}: a line has {MAX_LINE:,} bytes or more, which no record has: remove it")
            if not line.endswith(b"\n"):
                self._cut[file] = len(line)
                return
            if line != b"\n":
                self._keep(line[:-1], file)
            self._read[file] = self._read.get(file, 0) + len(line)

    def cut_off(self) -> list[Path]:
        """Files whose last line had no end when `records` read them: still being written, or cut off by a kill."""
        return [file for file, length in self._cut.items() if length]

    def _keep(self, line: bytes, file: Path) -> None:
        try:
            record = Record.read(line.decode())
        except (StorageError, UnicodeDecodeError) as error:
            number = next(at for at, one in enumerate(bounded_lines(file), start=1) if one == line + b"\n")
            raise StorageError(
                f"{file}:{number}: {error}; the line is damaged, remove it and its trial runs again"
            ) from error
        before = self._records.get(record.trial.id)
        if before is None or before.status in RETRIED:
            self._records[record.trial.id] = record

    @property
    def is_open(self) -> bool:
        """Whether the file of this process is open, so that a record goes into it wherever it is by now."""
        return self._own is not None

    def append(self, *records: Record) -> None:
        """Write records: all of them or, if the process is killed, none."""
        with storage_errors(self.folder):
            if self._own is None:
                name = f"{socket.gethostname()}-{os.getpid()}-{self._begun}.jsonl"
                place = self.folder if self.anchor is None else self.anchor.place
                self._own = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            _write(self._own, "".join(record.line() + "\n" for record in records).encode())
            now = time.monotonic()
            if now - self._synced > _SYNC_SECONDS:
                os.fsync(self._own)
                self._synced = now

    def close(self) -> None:
        """Flush the file of this process to the disk and close it."""
        if self._own is not None:
            with storage_errors(self.folder):
                os.fsync(self._own)
            os.close(self._own)
            self._own = None


def _write(file: int, text: bytes) -> None:
    """Write all of it: a full disk or a signal can end a single call early."""
    while text:
        text = text[os.write(file, text) :]


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
        place = self.folder if self.anchor is None else self.anchor.place
        return place / hashlib.sha256(name.encode()).hexdigest()[:24]

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
