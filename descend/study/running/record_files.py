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
from descend.filenames import regular_file
from descend.study.running.storage import storage_errors
from descend.study.running.trial import RETRIED, Record

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RecordFiles"]

_SYNC_SECONDS = 1.0  # records are flushed to the disk at least so often


class RecordFiles:
    """The records of a study, in `NAME.jsonl` files of one directory.

    Args:
        folder: The directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
                with regular_file(file).open("rb") as lines:
                    lines.seek(self._read.get(file, 0))
                    whole, end, cut = lines.read().rpartition(b"\n")
            except OSError as error:
                raise StorageError(f"{file} cannot be read: {error.strerror}") from error
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

    @property
    def is_open(self) -> bool:
        """Whether the file of this process is open, so that a record goes into it wherever it is by now."""
        return self._own is not None

    def append(self, *records: Record) -> None:
        """Write records: all of them or, if the process is killed, none."""
        with storage_errors(self.folder):
            if self._own is None:
                name = f"{socket.gethostname()}-{os.getpid()}-{self._begun}.jsonl"
                self._own = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
