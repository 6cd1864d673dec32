"""Recognizes tables of text by their first lines, and what is between their cells.

blanks      runs of spaces and tabs, as UCI's files and NumPy's `savetxt` have, where all lines have the same number of
            cells, two or more, and each row has a number
padded      a separator with a space behind it: 39, Private, 77516
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

from descend.data.tables.cells import MISSING, csv_rows, is_any_number, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "BEFORE_NAMES",
    "BLANKS",
    "SEPARATORS",
    "are_padded",
    "are_separated_by_blanks",
    "is_table",
    "lacks_a_name",
    "separator_by_commas",
    "split_by_blanks",
]

SEPARATORS = ",;\t|"
BLANKS = " "
BEFORE_NAMES = "# "  # as NumPy's `savetxt` writes them
_QUOTE = '"'
_QUOTED = re.compile(r'(?:"[^"]*"[ \t]*)+')


def split_by_blanks(line: str, quote: str = _QUOTE) -> list[str]:
    """The cells of a line that has runs of spaces and tabs between them."""
    if (not quote or quote not in line) and line.isascii():
        return line.split()
    blank = line.replace("\t", " ").strip()
    return next(csv_rows([blank], BLANKS, quote, padded=True), [])


def are_separated_by_blanks(lines: Sequence[str], quote: str = _QUOTE) -> bool:
    """Whether the first lines of a table, which may begin with names, have blanks and nothing else between cells.

    Where a line has a separator as well, its part up to there must be several numbers, or its commas those of decimals.
    """
    split = [split_by_blanks(line, quote) for line in (lines[0].removeprefix(BEFORE_NAMES), *lines[1:])]
    rows = split[1:] or split
    if not _are_even(split):
        return False
    if all(is_any_number(cell) for cells in rows for cell in cells):
        return True
    if len(split[0]) < len(rows[0]) and not _QUOTED.fullmatch(lines[0].rstrip()):
        return False  # rather sentences
    if any(one in line for line in lines for one in SEPARATORS):
        return all("\t" in line and _are_numbers(line.split("\t")) for line in lines)
    return all(any(map(is_number, cells)) for cells in rows)


def lacks_a_name(cells: Sequence[str], row: Sequence[str]) -> bool:
    """Whether a first line has names for all columns but the first, which has names of rows, as R writes them."""
    return len(cells) == len(row) - 1 > 1 and row[-1].strip() != "" and not any(map(is_any_number, cells))


def _are_even(split: Sequence[Sequence[str]]) -> bool:
    """Whether lines have the same number of cells, two or more; the first one may lack a name."""
    rows = split[1:] or split
    if len({len(cells) for cells in rows}) != 1 or len(rows[0]) < 2:
        return False
    return len(split[0]) == len(rows[0]) or lacks_a_name(split[0], rows[0])


def _are_numbers(parts: Iterable[str]) -> bool:
    """Whether a part of a line holds several numbers."""
    split = (part.split() for part in parts)
    return any(
        len(cells) > 1 and all(cell in MISSING or is_number(cell) for cell in cells) and any(map(is_number, cells))
        for cells in split
    )


def separator_by_commas(line: str) -> str | None:
    """What is between the cells of a line whose commas are those of decimals; None: it is no such line."""
    for one in SEPARATORS.replace(",", ""):
        cells = [cell.strip() for cell in line.split(one)]
        if len(cells) > 1 and all(map(is_any_number, cells)):
            return one
    return None


def are_padded(line: str, separator: str, quote: str = _QUOTE) -> bool:
    """Whether all cells of a line but the first begin with a space."""
    cells = next(csv_rows([line], separator, quote), [])
    return separator != BLANKS and len(cells) > 1 and all(cell.startswith(" ") for cell in cells[1:])


def is_table(begin: bytes, whole: int = 1024) -> bool:
    """Whether the beginning of a text shows a table: rows of numbers, or rows of which a column has numbers alone.

    Sentences have a space behind a comma, so there all cells must be numbers.

    Args:
        begin: Of a file.
        whole: Where it has fewer bytes than this, it is all of the file.
    """
    text = begin.decode("utf-8-sig", errors="replace")
    if "\0" in text or text.lstrip().startswith(("{", "[", "<")):
        return False
    lines = text.splitlines() if len(begin) < whole else text.splitlines()[:-1]
    lines = [line.removeprefix(BEFORE_NAMES) for line in lines if line.strip()]
    if len(lines) < 2:
        return False
    for separator in SEPARATORS:
        split = list(csv.reader(lines, delimiter=separator))
        if separator in lines[0] and (_all_numbers(split) or (", " not in lines[0] and _have_numbers(split))):
            return True
    split = [split_by_blanks(line) for line in lines]
    return _all_numbers(split) or (_QUOTED.fullmatch(lines[0].rstrip()) is not None and _have_numbers(split))


def _have_numbers(split: Sequence[Sequence[str]]) -> bool:
    """Whether there is a column of numbers, in two rows or more."""
    if not _are_even(split) or len(split) < 3:
        return False
    return any(all(map(is_number, column)) for column in zip(*split[1:], strict=True))


def _all_numbers(split: Sequence[Sequence[str]]) -> bool:
    """Whether rows behind the first, which may have names, have the same number of cells, all of them numbers."""
    if not _are_even(split):
        return False
    cells = [cell.strip() for row in split[1:] for cell in row]
    there = [cell for cell in cells if cell not in MISSING]
    return bool(there) and all(map(is_any_number, there))
