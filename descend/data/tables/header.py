"""Judges the first lines of a table of text: whether they are one, its separator, and whether they name the columns.

The first row has names where none of its cells is a number. A number may be a name as well: pandas names columns 0, 1,
2 unless others are said, and years and wavelengths are names. So where some cells are numbers the rows below decide:

names      a text above a column of numbers; quotes around the first row alone; an empty cell above 0, 1, 2, ...;
           numbers that differ in kind from all below them (integers above fractions, or fractions above integers, or
           far larger, or above text), and are 0, 1, 2, ..., evenly spaced, or beside a text
a sample   a text that comes again below it; a number that is the first of an evenly spaced column; numbers that are
           like those below them, or come twice
in doubt   what has some signs of names, and not enough; the caller has to say it
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
    "has_names",
    "is_table",
    "lacks_a_name",
    "separator_by_commas",
    "split_by_blanks",
]

_INTEGER = re.compile(r"[+-]?\d+")
_FAR = 10  # times the largest number of a column
_SURE = 5  # numbers in an order that is none by chance
_SOME_ROWS, _MANY_ROWS = 5, 20
_YEAR = 1000


@dataclass(frozen=True)
class _Below:
    """A cell of the first row that is a number, and what is below it.

    Args:
        cell: The cell.
        cells: Of the column, without missing ones.
    """

    cell: str
    cells: tuple[str, ...]

    @property
    def number(self) -> float:
        """The cells of the first row."""
        return _number(self.cell)

    @cached_property
    def _numbers(self) -> list[str]:
        return [cell for cell in self.cells if is_any_number(cell)]

    @property
    def has_numbers(self) -> bool:
        """Whether there is a number below it."""
        return bool(self._numbers)

    def has_another_form(self) -> bool:
        """Whether it is an integer and no number below it is, or a fraction and all are integers, or all are texts."""
        if len(self._numbers) < len(self.cells):
            return not self._numbers and len(self.cells) >= _SOME_ROWS
        if len(self._numbers) < 2:  # a single one is no kind
            return False
        integers = [_INTEGER.fullmatch(cell) is not None for cell in self._numbers]
        return not any(integers) if _INTEGER.fullmatch(self.cell) else all(integers)

    def is_far(self) -> bool:
        """Whether it is far from all numbers below it: ten times as large or small, or out of the range of many."""
        if not self._numbers or len(self._numbers) < len(self.cells):
            return False
        values, own = [_number(cell) for cell in self._numbers], self.number
        low, high, sizes = min(values), max(values), [abs(value) for value in values]
        if abs(own) > _FAR * max(sizes) > 0 or min(sizes) > _FAR * abs(own) > 0:
            return True
        return len(values) >= _MANY_ROWS and high > low and not 2 * low - high <= own <= 2 * high - low

    def differs(self) -> bool:
        """Whether it is of another kind than all numbers below it."""
        return self.has_another_form() or self.is_far()

    @property
    def is_integer(self) -> bool:
        """Whether it and all cells below it are integers."""
        return all(map(_INTEGER.fullmatch, (self.cell, *self.cells)))

    def continues(self) -> bool:
        """Whether the column with it is evenly spaced, such as times; a few integers are by chance."""
        if len(self.cells) < (3 if self.is_integer else 2) or not all(map(is_any_number, self.cells)):
            return False
        return _is_even([self.number, *map(_number, self.cells)])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float(cell.replace(",", "."))


def _is_even(numbers: Sequence[float]) -> bool:
    """Whether there is the same step, which is not 0, between all numbers."""
    steps = [after - before for before, after in pairwise(numbers)]
    return len(steps) > 0 and steps[0] != 0 and all(abs(one - steps[0]) <= 1e-6 * abs(steps[0]) for one in steps)


def has_names(first: Sequence[str], below: Sequence[Sequence[str]], is_marked: bool = False) -> bool | None:
    """Whether a first row has names; None where that is in doubt.

    Args:
        first: Its cells.
        below: Those of some rows after it.
        is_marked: Whether its numbers are in quotes and those below them are not.
    """
    names = [cell.strip() for cell in first]
    columns = [[row[i].strip() for row in below if i < len(row)] for i in range(len(names))]
    columns = [tuple(cell for cell in column if cell not in MISSING) for column in columns]
    if not any(map(is_any_number, names)):
        return _all_texts(names, columns, below)
    if not below:
        return False
    numbers = [_Below(name, columns[i]) for i, name in enumerate(names) if name not in MISSING and is_any_number(name)]
    texts = [i for i, name in enumerate(names) if name not in MISSING and not is_any_number(name)]
    if any(names[i] in columns[i] for i in texts):
        return False
    if is_marked:
        return True
    named = [name for name in names if name]
    differ = len(set(named)) == len(named)
    above_numbers = any(columns[i] and all(map(is_any_number, columns[i])) for i in texts)
    if above_numbers or _is_numbering(names, columns[0], named):
        odd = any(one.has_another_form() for one in numbers) or all(one.differs() for one in numbers)
        sure = len(below) >= _SOME_ROWS or (len(below) > 1 and odd) or not texts
        return True if differ and sure else None
    if not differ:
        return None if texts and all(one.differs() for one in numbers) else False
    return _by_numbers(numbers, [columns[i] for i in texts], named, below)


def _all_texts(names: Sequence[str], columns: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> bool | None:
    """Judge a first row without numbers: names, unless a cell comes again below it where all is text."""
    if not any(name not in MISSING for name in names):
        return False
    numeric = [bool(column) and all(map(is_any_number, column)) for column in columns]
    if any(name and name in MISSING and one for name, one in zip(names, numeric, strict=True)):
        return None  # "NA" above numbers is a missing one, or a name
    again = any(name in column for name, column in zip(names, columns, strict=True) if name not in MISSING)
    if not again or any(one and name for name, one in zip(names, numeric, strict=True)):
        return True
    # Names come again where files were joined, but so do samples.
    rests = [[cell for cell in column if cell != name] for name, column in zip(names, columns, strict=True)]
    is_joined = list(names) in [[cell.strip() for cell in row] for row in below]
    above_numbers = any(
        rest and name and all(map(is_any_number, rest)) for name, rest in zip(names, rests, strict=True)
    )
    return True if is_joined and above_numbers else None


def _is_numbering(names: Sequence[str], column: Sequence[str], named: Sequence[str]) -> bool:
    """Whether the first column has the row numbers that pandas writes, without a name."""
    if names[0] or len(named) < len(names) - 1:
        return False
    are_counted = list(named) == _counted(len(named)) and (len(named) > 1 or not any(map(is_any_number, column)))
    return list(column) == _counted(len(column)) or are_counted


def _counted(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _by_numbers(
    numbers: Sequence[_Below], texts: Sequence[tuple[str, ...]], named: Sequence[str], below: Sequence[Sequence[str]]
) -> bool | None:
    """Judge by the numbers of a first row, which are all different; `texts` is what is below its texts."""
    values = [one.number for one in numbers]
    odd = [one.differs() for one in numbers]
    counted = list(named) == _counted(len(named))
    years = len(values) == 2 and _is_even(values) and abs(values[1] - values[0]) == 1 and min(values) >= _YEAR
    spaced = years or (len(values) > 2 and _is_even(values))
    if continued := [one for one in numbers if one.continues()]:
        return None if (counted or spaced) and all(one.is_integer for one in continued) else False
    if counted and len(named) == 1:
        return False if len(below) < 2 or "0" in numbers[0].cells else None
    if counted:
        return True if any(odd) else _counted_integers(len(values), below)
    if all(odd):
        rising = len(values) >= _SURE and values == sorted(values)
        beside = (
            texts and (len(below) >= _SOME_ROWS or any(one.has_another_form() for one in numbers)) and len(below) > 1
        )
        named_so = spaced and values[1] > values[0] and (values[1] - values[0] == 1 or any(map(_Below.is_far, numbers)))
        return True if named_so or rising or beside else None
    if spaced:
        return True if texts or (any(odd) and len(values) > 2) else _unlike_rows(values, below)
    comes_again = any(len(column) >= _SOME_ROWS and len(set(column)) <= len(column) / 2 for column in texts)
    above_texts = any(one.cells and not one.has_numbers for one in numbers)
    return None if comes_again or above_texts else False


def _counted_integers(count: int, below: Sequence[Sequence[str]]) -> bool | None:
    """Judge a first row 0, 1, 2, ... above numbers that may be integers as well."""
    if list(below[0]) == [str(number) for number in range(count, 2 * count)]:  # which counts on
        return False
    return True if count >= _SURE else None


def _unlike_rows(values: Sequence[float], below: Sequence[Sequence[str]]) -> bool | None:
    """False where rows below are evenly spaced, or there is one alone, so that a first row like that is one of them."""
    rows = [[_number(cell) for cell in row if is_any_number(cell)] for row in below]
    alike = (
        row for row in rows if len(row) == len(values) and (len(row) > 2 or row[1] - row[0] == values[1] - values[0])
    )
    return False if len(rows) < 2 or any(map(_is_even, alike)) else None


# ---- recognizes tables of text by their first lines, and what is between their cells
#
# blanks      runs of spaces and tabs, as UCI's files and NumPy's `savetxt` have, where all lines have the same number
# of
#             cells, two or more, and each row has a number
# padded      a separator with a space behind it: 39, Private, 77516

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
