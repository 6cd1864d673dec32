"""Cells of tables of text: how rows are split into them, which stand for missing values, and which are numbers.

A column of text in which most cells are numbers was meant as one of numbers: the others are mistakes, such as "ERR" or
"12.5 USD". As classes all would be numbered, each number by its place in the alphabet. So

    a target        is refused where at least half of its cells are numbers
    another column  of a table without types is refused where one cell, or at most a tenth, is no number; where at most
                    half of them are none, it stays text, which is said
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from descend.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "DIGITS",
    "EXTREME",
    "INTEGER",
    "MISSING",
    "PLAIN",
    "SEPARATED",
    "CellCounts",
    "count_texts",
    "csv_rows",
    "in_range",
    "is_any_number",
    "is_number",
    "may_be_tiny",
]

_NULLS = "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|N/A|NA|NULL|NaN|n/a|nan|null"  # of pyarrow.csv
_MARKS = r"?|-|--|.|None|<NA>|*|\N"  # of other programs and of collections
MISSING = frozenset(["", *_NULLS.split("|"), *_MARKS.split("|")])
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?")
DIGITS = r"\d+[.]?\d*|[.]\d+"
PLAIN = rf"^\s*[+-]?(?:(?:{DIGITS})(?:[eE][+-]?\d+)?|(?i:inf|infinity|nan))\s*$"
_GROUPS = r"\d+,\d+|\d{1,3}(?:[ ,.']\d{3})+(?:[.,]\d+)?"  # 1,5 and 1,234.5 and 1 234
_COINS = "$€£¥"
SEPARATED = (
    rf"^\s*[+-]?(?:{_GROUPS})\s*$|^\s*[+-]?[{_COINS}]\s?(?:{_GROUPS}|{DIGITS})\s*$"
    rf"|^\s*[+-]?(?:{_GROUPS}|{DIGITS})\s?[%{_COINS}]\s*$"
)
INTEGER = r"^\s*[+-]?\d+\s*$"
EXTREME = r"[eE][+-]?0*(?:[3-9]\d\d|\d{4,})|\d{300}"  # in numbers that may be beyond the range of float64
_TINY = re.compile(rb"-(?<=[eE]-)0*(?:[3-9]\d\d|\d{4,})")  # which is searched for by its rarest character
_ZEROS = b"0" * 300
_OF_PLAIN, _OF_SEPARATED, _OF_INTEGER = map(re.compile, (PLAIN, SEPARATED, INTEGER))
_FEW = 10  # at most one in so many cells of a column of numbers is none


def csv_rows(
    lines: Iterable[str], separator: str, quote: str = '"', escape: str | None = None, padded: bool = False
) -> Iterator[list[str]]:
    """The cells of each row of some lines.

    Args:
        lines: With their ends.
        separator: Between cells.
        quote: Around cells with separators, quotes or newlines in them; "" is none.
        escape: Before a quote or a separator that is text.
        padded: Whether blanks behind a separator are no part of a cell.
    """
    return csv.reader(
        lines,
        delimiter=separator,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        escapechar=escape,
        skipinitialspace=padded,
    )


def is_number(cell: str) -> bool:
    """Whether a cell of a table is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python's numbers may have


def may_be_tiny(content: bytes) -> bool:
    """Whether there may be numbers that float64 makes 0; those that it makes infinite show in the column."""
    return _ZEROS in content or _TINY.search(content) is not None


def in_range(text: str) -> float:
    """The number that a text is.

    Raises:
        ValueError: it would become infinite, or 0, which it is not.
    """
    value = float(text)
    if value in (0, math.inf, -math.inf) and text.lower().partition("e")[0].strip("+-.0"):
        raise ValueError(f"a number must be in the range of float64, got {shown(text)}, which would become {value:g}")
    return value


def is_any_number(cell: str) -> bool:
    """Whether a cell is a number with a point or a comma before its fraction."""
    return is_number(cell) or _DECIMAL_COMMA.fullmatch(cell.strip()) is not None


@dataclass(frozen=True)
class CellCounts:
    """How many cells of a column of text are numbers; missing ones do not count.

    Args:
        plain: Numbers, such as 1.5 and -2e3.
        integers: Those of them that are integers.
        separated: Numbers in other forms, such as 1,5 and 1,234.5, and $5 and 5 %.
        others: All other cells.
        odd: Place and text of the first cell that is not plain.
    """

    plain: int = 0
    integers: int = 0
    separated: int = 0
    others: int = 0
    odd: tuple[Any, str] | None = None

    def joined(self, other: CellCounts) -> CellCounts:
        """The counts of two parts of a column together."""
        return CellCounts(
            self.plain + other.plain,
            self.integers + other.integers,
            self.separated + other.separated,
            self.others + other.others,
            self.odd or other.odd,
        )

    def moved(self, place: Callable[[Any], Any]) -> CellCounts:
        """With other places for cells."""
        return self if self.odd is None else replace(self, odd=(place(self.odd[0]), self.odd[1]))

    @property
    def total(self) -> int:
        """Cells that are there."""
        return self.plain + self.separated + self.others

    def of_target(self) -> tuple[Any, str] | None:
        """The place of a cell and the reason for which a column should be none of classes; None where it may be one."""
        if self.plain >= self.total - self.plain > 0:
            return self._odd_cell()
        if self.plain == self.total > self.integers:
            return None, f"all {self.total:,} cells are numbers with fractions"
        return self._separated_cells()

    def of_feature(self) -> tuple[Any, str] | None:
        """Likewise for a column that is not one of text: one cell, or few of many, are no numbers."""
        odd = self.total - self.plain
        if self.plain > 0 == odd:
            return None, f"all {self.total:,} cells are numbers, and other columns have commas before fractions"
        if self.plain > odd > 0 and (odd == 1 or odd * _FEW <= self.total):
            return self._odd_cell()
        return None

    def of_text(self) -> tuple[Any, str] | None:
        """Likewise what is to say of a column that stays one of text: most of its cells are numbers, of any form."""
        return self._odd_cell() if self.plain > self.total - self.plain > 0 else self._separated_cells()

    def _separated_cells(self) -> tuple[Any, str] | None:
        """Likewise where at least half of the cells are numbers, and some of them in another form."""
        numbers = self.plain + self.separated
        if not self.separated or numbers * 2 < self.total:
            return None
        some = "all" if not self.others else f"{numbers:,} of"
        return self.odd and self.odd[0], f"{some} {self.total:,} cells are numbers in a form such as {self._shown()}"

    def _shown(self) -> str:
        return shown(self.odd[1] if self.odd else "")

    def _odd_cell(self) -> tuple[Any, str]:
        assert self.odd is not None
        return self.odd[0], f"{self._shown()} is no number, and {self.plain:,} of {self.total:,} cells are"


def count_texts(texts: Iterable[Any]) -> CellCounts:
    """The counts of texts, of which others than texts are written as Python does; places are their numbers."""
    plain = integers = separated = others = 0
    odd: tuple[int, str] | None = None
    for place, text in enumerate(texts):
        cell = str(text)
        if cell in MISSING:
            continue
        if _OF_PLAIN.search(cell):
            plain += 1
            integers += _OF_INTEGER.search(cell) is not None
            continue
        odd = odd or (place, cell)
        is_separated = _OF_SEPARATED.search(cell) is not None
        separated, others = separated + is_separated, others + (not is_separated)
    return CellCounts(plain, integers, separated, others, odd)
