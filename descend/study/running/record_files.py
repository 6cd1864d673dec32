"""Records of trials as lines of JSON: every process appends to a file of its own, and reads those of all.

A record is written in one piece, and a line without its end does not count, so a process that is killed loses the trial
in progress and nothing else.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from descend.errors import StorageError
from descend.files import MAX_LINE, bounded_lines
from descend.study.running.storage import storage_errors
from descend.study.running.trial import RETRIED, Record

if TYPE_CHECKING:
    from pathlib import Path

    from descend.runtime.directory_lock import HeldFolder

__all__ = ["RecordFiles"]

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
