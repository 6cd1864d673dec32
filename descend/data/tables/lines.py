"""Tables of text that have more than rows, or blanks around cells: a copy is parsed in place of the file.

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

from descend.arguments import shown
from descend.data.expansion import opened, plain_name
from descend.data.paths import head
from descend.data.tables.cells import csv_rows
from descend.data.tables.layout import BEFORE_NAMES, BLANKS, lacks_a_name, split_by_blanks
from descend.data.tables.quotes import QuoteCheck
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TableCopy", "excel_separator"]

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
