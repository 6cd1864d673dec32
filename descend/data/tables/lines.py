"""Follows the lines of a table of text: copies those that are rows, and checks that each quote is closed.

It is without comments and Excel's first line `sep=;`, and has one separator between cells. It is in UTF-8; bytes of
such a file that are none stay as they are.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from descend.arguments import shown
from descend.data.expansion import opened, plain_name
from descend.data.paths import head
from descend.data.tables.cells import csv_rows
from descend.data.tables.header import BEFORE_NAMES, BLANKS, lacks_a_name, split_by_blanks
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["QuoteCheck", "TableCopy", "excel_separator"]

_EXCEL = re.compile(rb"(?:\xef\xbb\xbf)?sep=([^\r\n])\r?\n")
_AT_ONCE = 2**20  # characters


def excel_separator(path: Path) -> str | None:
    """The separator that the first line names as Excel writes it, in a file of UTF-8."""
    found = _EXCEL.match(head(path))
    return None if found is None else found[1].decode("latin-1")


class TableCopy:
    """A copy of a file without such lines; it is removed with this object.

    Args:
        path: Of the file.
        encoding: Of the file.
        comment: What lines begin with that are left out; None keeps all.
        quote: A line within a cell that is quoted by this is kept; "" is no character.
        escape: The character before a quote or a separator that is text. Cells of \\N alone, which are missing values,
            get one more.
        between: What is between cells, with blanks around it that are left out: a separator, or `BLANKS` for runs of
            them, in whose place the copy has tabs. None copies lines as they are.

    Attributes:
        path: Of the copy, whose cells have quotes and no escapes where blanks were left out.
        comments: How many lines are left out for `comment`.
        notes: What is suspicious in its quotes, see `QuoteCheck`, and escapes before characters that mean nothing.

    Raises:
        DataError: a row that has to be written again is too long, or a quote is not closed.
    """

    def __init__(
        self,
        path: Path,
        encoding: str,
        comment: str | None,
        quote: str,
        escape: str | None = None,
        between: str | None = None,
        separator: str = ",",
    ) -> None:
        handle, name = tempfile.mkstemp(prefix="descend-lines-", suffix=plain_name(path)[-20:])
        self.path = Path(name)
        weakref.finalize(self, self.path.unlink, missing_ok=True)
        is_utf8 = encoding.replace("_", "-").lower() in ("utf-8", "utf8")
        name, errors = ("utf-8-sig", "surrogateescape") if is_utf8 else (encoding, "replace")
        with (
            io.TextIOWrapper(opened(path), encoding=name, errors=errors, newline="") as file,
            os.fdopen(handle, "w", encoding="utf-8", errors=errors, newline="") as copy,
        ):
            check = QuoteCheck(path, quote, f"{separator} \t" if between else separator, escape)
            self.comments = 0
            lines = self._kept(file, comment, check, excel_separator(path) is not None)
            escapes = _Escapes(escape, quote, separator + " \t" * (between is not None)) if escape else None
            lines = lines if escapes is None else escapes.followed(lines)
            if between is None:
                copy.writelines(lines)
            else:
                separator = "\t" if between == BLANKS else between
                written = csv.writer(copy, delimiter=separator, quotechar=quote or '"', lineterminator="\n")
                written.writerows(_cells(lines, between, quote, escape, path))
        check.finish()
        self.notes = [note for note in (check.note, escapes and escapes.note()) if note]

    def _kept(self, file: TextIO, comment: str | None, check: QuoteCheck, without_first: bool) -> Iterator[str]:
        """Lines, or parts of long ones, that are no comments."""
        begins, left_out = True, without_first
        while part := file.readline(_AT_ONCE):
            if begins and not check.is_open and not left_out:
                left_out = comment is not None and part.startswith(comment)
                self.comments += left_out
            if left_out:
                check.pass_over(part.count("\n"))
            else:
                check.add(part.encode("utf-8", "surrogateescape"))
                yield part
            begins = part.endswith(("\n", "\r"))
            left_out = left_out and not begins


class _Escapes:
    """The escapes in lines of a table.

    Args:
        escape: The character.
        quote: What it may be before, beside itself, ends of lines and
        separators: what is between cells.
    """

    def __init__(self, escape: str, quote: str, separators: str) -> None:
        around, self._escape = re.escape(separators), escape
        self._null = re.compile(rf"(?<![^{around}\r\n]){re.escape(escape)}N(?![^{around}\r\n])")
        self._any = re.compile(rf"{re.escape(escape)}(.)", re.DOTALL)
        self._known = frozenset(f"{escape}{quote}{separators}\r\n")
        self._count, self._first = 0, ""

    def followed(self, lines: Iterator[str]) -> Iterator[str]:
        """Lines with one escape more before cells that are NULL in what MySQL writes, so that they stay what they are.

        Escapes before other characters are counted.
        """
        for line in lines:
            if self._escape not in line:
                yield line
                continue
            whole = self._null.sub(lambda found: self._escape + found[0], line)
            odd = [found[0] for found in self._any.finditer(whole) if found[1] not in self._known]
            self._first = self._first or (odd[0] if odd else "")
            self._count += len(odd)
            yield whole

    def note(self) -> str | None:
        """The sentence about those that are before other characters."""
        if not self._count:
            return None
        return (
            f"{self._count:,} escapes are before other characters than quotes, separators and newlines, such as "
            f"{shown(self._first)}, and are left out: what follows them is read as it is written"
        )


def _cells(lines: Iterator[str], between: str, quote: str, escape: str | None, path: Path) -> Iterator[list[str]]:
    """The cells of each row, without blanks around them."""

    def whole() -> Iterator[str]:
        for line in lines:
            if len(line) >= _AT_ONCE and not line.endswith("\n"):
                raise DataError(f"{path} has a line of more than {_AT_ONCE:,} characters; is this a table of text?")
            yield line

    try:
        if between == BLANKS:
            some = (line for line in whole() if line.strip())
            rows = (
                split_by_blanks(line if n else line.removeprefix(BEFORE_NAMES), quote) for n, line in enumerate(some)
            )
        else:
            read = csv_rows(whole(), between, quote, escape, padded=True)
            rows = ([cell.strip() for cell in cells] for cells in read if cells)
        first, second = next(rows, None), next(rows, None)
        if first is not None:
            yield first if second is None or not lacks_a_name(first, second) else ["", *first]
        if second is not None:
            yield second
        yield from rows
    except csv.Error as error:
        raise DataError(f"{path} cannot be read: {error}") from error


# ---- follows the quotes of a table of text: to a parser one that is never closed has all rows to the end of the
# file in a cell, and two stray ones have those between them
#
# A quote opens a cell at its beginning alone, and closes it unless another one follows at once, which stands for a
# quote in the text. An error is
#
#     a quote that is open at the end
#     one that opens a cell of several lines and is closed in the middle of a cell, so that text follows it
#     one that is closed likewise in the same line, with a backslash before it: other programs mean a quote in the text
#
# A cell whose lines have as many separators as rows is noted: it may be one that someone wrote.

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
