"""Follows a `metrics.jsonl` that a run writes: each reading takes what was appended since the one before."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from descend.files import regular_file
from descend.pages.run.metrics import RunMetrics

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

__all__ = ["MetricsFile"]

_BLOCK = 1 << 18  # bytes that are read at once
_MAX_LINE = 4_000_000  # bytes; a row of a run with thousands of metrics has some 100,000
_PROOF = 1_024  # bytes at the beginning and before the place of reading that must still be there
_GLANCES = (4_096, 65_536, 1_048_576)  # bytes at both ends; more of them where no whole row is in so many


class MetricsFile:
    """The rows of one file, as far as they were read.

    A file that was exchanged, cut off or rewritten is read from its beginning: it is another one, is shorter, or has
    other bytes at its beginning or before the place of reading. A last line without its end counts once it is a whole
    row; until then it is waited for.

    Args:
        path: The file, which need not exist yet.

    Attributes:
        metrics: Of the rows that were read.
        parsed_bytes: How much was read in all, also of a file that was read again.
        problem: Why it cannot be read; "" where it can, or there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parsed_bytes = 0
        self.problem = ""
        self._begin_again()

    def _begin_again(self) -> None:
        self.metrics = RunMetrics()
        self._seen: tuple[int, ...] = ()
        self._offset, self._head, self._before = 0, b"", b""
        self._rest, self._is_skipping, self._took_rest = b"", False, False

    def advance(self, at_most: int | None = None) -> bool:
        """Read what is new.

        Args:
            at_most: Bytes; None reads to the end.

        Returns:
            Whether the end was reached.
        """
        try:
            with regular_file(self.path).open("rb") as file:
                return self._advance(file, at_most)
        except FileNotFoundError:
            self._begin_again()
            self.problem = ""
        except OSError as error:
            self._begin_again()
            self.problem = f"it cannot be read: {error.strerror or error}"
        return True

    def _advance(self, file: BufferedReader, at_most: int | None) -> bool:
        now = _identity(file)
        if now == self._seen and self._offset >= now[2]:
            return True
        if not self._continues(file, now):
            self._begin_again()
        self._seen, self.problem, done = now, "", 0
        file.seek(self._offset)
        while at_most is None or done < at_most:
            block = file.read(_BLOCK if at_most is None else min(_BLOCK, at_most - done))
            if not block:
                self._end_of_file()
                return True
            done += len(block)
            self._take(block)
        return False

    def _continues(self, file: BufferedReader, now: tuple[int, ...]) -> bool:
        """Whether what was read is still there, at the beginning of the same file."""
        if not self._seen or now[:2] != self._seen[:2] or now[2] < self._offset:
            return not self._seen
        if now[2] == self._offset == self._seen[2]:
            return False  # written to, and not longer
        file.seek(0)
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _take(self, block: bytes) -> None:
        self._offset += len(block)
        self.parsed_bytes += len(block)
        self._head = (self._head + block[: _PROOF - len(self._head)])[:_PROOF]
        self._before = (self._before + block)[-_PROOF:]
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            if not self._is_skipping and (line or not self._took_rest):
                self.metrics.add_line(line)
            self._is_skipping = self._took_rest = False
        if len(self._rest) > _MAX_LINE or self._is_skipping:
            self._skip_long_line()

    def _skip_long_line(self) -> None:
        if not self._is_skipping:
            self.metrics.lines += 1
            self.metrics.pass_over(f"it has more than {_MAX_LINE:,} bytes")
        self._is_skipping, self._rest = True, b""

    def _end_of_file(self) -> None:
        """Take a last line without its end if it is a whole object, which no beginning of one is."""
        if not self._rest.endswith(b"}"):
            return
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(self._rest)
            self.metrics.add_line(self._rest)
            self._rest, self._took_rest = b"", True

    @property
    def problems(self) -> list[str]:
        """Sentences on what was left out."""
        return [*([self.problem] if self.problem else []), *self.metrics.problems]

    @property
    def is_cut_off(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._rest)

    @property
    def unread_bytes(self) -> int:
        """How much longer the file is than what was read; all of it where it is another one."""
        try:
            found = self.path.stat()
        except OSError:
            return 0
        return found.st_size - (self._offset if (found.st_dev, found.st_ino) == self._seen[:2] else 0)

    def glance(self) -> tuple[RunMetrics, bool]:
        """The metrics of the first and the last rows of a file that was not read to its end, and whether it was."""
        try:
            with regular_file(self.path).open("rb") as file:
                if _identity(file) == self._seen and self._offset >= self._seen[2]:
                    return self.metrics, True
                return _ends(file), False
        except OSError:
            return self.metrics, True


def _identity(file: BufferedReader) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _ends(file: BufferedReader) -> RunMetrics:
    """A hash of whole lines at the beginning and at the end of a file."""
    size, made = os.fstat(file.fileno()).st_size, RunMetrics()
    for most in _GLANCES:
        file.seek(0)
        head, _, _ = file.read(most).rpartition(b"\n")
        file.seek(max(size - most, len(head)))
        _, _, tail = file.read(most).partition(b"\n")
        made = RunMetrics()
        for line in (*head.split(b"\n"), *tail.rpartition(b"\n")[0].split(b"\n")):
            made.add_line(line)
        if made.modes or size <= 2 * most:
            break
    return made
