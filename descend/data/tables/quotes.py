"""Follows the quotes of a table of text: to a parser one that is never closed has all rows to the end of the file in a
cell, and two stray ones have those between them.

A quote opens a cell at its beginning alone, and closes it unless another one follows at once, which stands for a quote
in the text. An error is

    a quote that is open at the end
    one that opens a cell of several lines and is closed in the middle of a cell, so that text follows it
    one that is closed likewise in the same line, with a backslash before it: other programs mean a quote in the text

A cell whose lines have as many separators as rows is noted: it may be one that someone wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["QuoteCheck"]

_LINE = ord("\n")
_LINES = b"\n\r"
_BACKSLASH = b"\\"
_SHOWN = 30  # bytes of a cell in an error
_LONGEST = 2**20  # bytes of a cell that are kept


class QuoteCheck:
    """Reads the bytes of a table, in parts of any size, of an encoding that has ASCII within it.

    Args:
        path: Of the file, for errors.
        quote: The character; "" is none.
        separators: What is between cells; several where blanks are.
        escape: The character before a quote that is text.
        columns: Number of cells of a row, for the note.

    Attributes:
        is_open: Whether the newest byte is within quotes.
        note: The sentence about a cell that looks like rows.
    """

    def __init__(
        self, path: Path, quote: str, separators: str, escape: str | None = None, columns: int | None = None
    ) -> None:
        self._path, self._quote, self._escape = path, quote.encode(), (escape or "").encode()
        self._around = frozenset(separators.encode() + _LINES)
        self._separator, self._columns = separators[:1].encode(), columns
        self.is_open = False
        self.note: str | None = None
        self._line = 1  # of the next byte
        self._opened_at = 0  # the line of the newest quote that opens a cell
        self._held = b"\n"  # the last byte, and quotes behind it, which are followed when the byte after them is known
        self._text = b""  # of the open cell, as far as it is in earlier parts
        self._wrong: str | None = None

    def add(self, part: bytes) -> None:
        """Follow the next bytes."""
        if self._quote and part:
            whole = self._held + part
            end = max(1, len(whole.rstrip(self._quote + self._escape)))
            self._follow(whole, end)
            self._held = whole[end - 1 :]

    def pass_over(self, lines: int) -> None:
        """Count lines that are no part of the table."""
        self._line += lines

    def finish(self) -> None:
        """Follow the end of the file.

        Raises:
            DataError: a quote is open, or one of those before is wrong.
        """
        if not self._quote:
            return
        self._follow(self._held + b"\n", len(self._held))
        self._held = b"\n"
        if self._wrong is None and self.is_open:
            self._wrong = (
                f"the quote that opens a cell in line {self._opened_at:,} is never closed, so all lines behind it are "
                "in this cell"
            )
        if self._wrong is not None:
            also = "" if self._escape else ", or escape='\\' where a quote within a text has a backslash before it"
            raise DataError(
                f"{self._path}: {self._wrong}: close it, or pass quote='' where quotes are parts of the text{also}"
            )

    def _follow(self, whole: bytes, end: int) -> None:
        """Follow the bytes from 1 to `end`; if the last one is a quote, there is one more."""
        values = np.frombuffer(whole, np.uint8)[1:end]
        if whole.find(self._quote, 1, end) < 0:
            self._keep(whole[1:end])
        else:
            places = np.flatnonzero(values == self._quote[0]) + 1
            ends = np.flatnonzero(values == _LINE) + 1
            if self._escape or not self._are_regular(np.frombuffer(whole, np.uint8), places):
                places = self._toggling(whole, places.tolist(), ends)
            else:
                places = self._without_pairs(places)
            self._toggle(whole, places, self._line + np.searchsorted(ends, places), end)
        self._line += whole.count(b"\n", 1, end)

    def _are_regular(self, values: NDArray[np.uint8], places: NDArray[np.int64]) -> bool:
        """Whether each quote opens and closes in turn, at the begin and the end of cells or beside another one."""
        opens = (np.arange(len(places)) + self.is_open) % 2 == 0
        around, beside = np.array(sorted(self._around), np.uint8), np.diff(places) == 1
        before = np.isin(values[places - 1], around) | np.append(False, beside)
        after = np.isin(values[places + 1], around) | np.append(beside, False)
        return bool(np.where(opens, before, after).all())

    def _without_pairs(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Without two quotes that stand for one in the text: one that would close, and one that would open at once."""
        closes = (np.arange(len(places)) + self.is_open) % 2 == 1
        first = np.append(np.diff(places) == 1, False) & closes
        return places[~(first | np.append(False, first[:-1]))]

    def _toggling(self, whole: bytes, places: list[int], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The quotes that open or close, where some are within cells or escaped."""
        found: list[int] = []
        is_open, opened, skipped = self.is_open, self._opened_at, -1
        lines = (self._line + np.searchsorted(ends, places)).tolist()
        for place, line in zip(places, lines, strict=True):
            if place == skipped or (self._escape and self._is_escaped(whole, place)):
                continue
            if is_open and whole[place + 1] == self._quote[0]:
                skipped = place + 1
                continue
            if is_open and whole[place + 1] not in self._around:
                self._note_wrong(whole, place, opened, line)
            if is_open or whole[place - 1] in self._around:
                is_open, opened = not is_open, opened if is_open else line
                found.append(place)
        return np.array(found, np.int64)

    def _is_escaped(self, whole: bytes, place: int) -> bool:
        begin = place
        while begin > 0 and whole[begin - 1] == self._escape[0]:
            begin -= 1
        return (place - begin) % 2 == 1

    def _toggle(self, whole: bytes, places: NDArray[np.int64], lines: NDArray[np.int64], end: int) -> None:
        """Open and close cells at these places."""
        first = int(self.is_open and len(places) > 0)  # the first one that opens
        if first and lines[0] > self._opened_at:
            self._judge(self._text + whole[1 : places[0]], self._opened_at)
        opening, closing = places[first::2], places[first + 1 :: 2]
        opened, closed = lines[first::2], lines[first + 1 :: 2]
        for i in np.flatnonzero(closed > opened[: len(closed)]).tolist():
            self._judge(whole[opening[i] + 1 : closing[i]], int(opened[i]))
        if len(places) % 2:
            self.is_open = not self.is_open
        if len(opening):
            self._opened_at = int(opened[-1])
        if len(places):
            self._text = b""
        self._keep(whole[int(places[-1]) + 1 if len(places) else 1 : end])

    def _keep(self, text: bytes) -> None:
        """Keep what an open cell has so far, unless it is long."""
        if self.is_open and len(self._text) < _LONGEST:
            self._text += text

    def _note_wrong(self, whole: bytes, place: int, opened: int, line: int) -> None:
        """Note a quote at a place that closes a cell in another line, or with a backslash before it, within text."""
        is_escaped = whole[place - 1 : place] == _BACKSLASH and self._escape == b""
        if self._wrong is not None or not (line > opened or is_escaped):
            return
        shown = whole[place - is_escaped : place + _SHOWN].splitlines()[0].decode(errors="replace")
        self._wrong = (
            f"the quote that opens a cell in line {opened:,} is closed in line {line:,}, where text follows it "
            f"({shown!r})"
        )

    def _judge(self, cell: bytes, line: int) -> None:
        """Note a cell whose whole lines have as many separators as rows."""
        inner = cell.splitlines()[1:-1]
        if self.note is not None or not inner or not self._columns or self._columns < 2:
            return
        prose = self._separator + b" "
        if all(one.count(self._separator) == self._columns - 1 and prose not in one for one in inner):
            self.note = (
                f"a cell in quotes that begins in line {line:,} has {len(inner):,} whole lines which look like rows; "
                "if a quote is missing there, or is a part of the text, close it, or pass quote=''"
            )
