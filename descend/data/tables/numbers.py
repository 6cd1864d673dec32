"""Columns of a table of text as numbers, where the parser does not see that they are, or changes them.

forms      1,234.5 and 12,345,678 where a whole column is like that
integers   one that float64 cannot hold is an error where a column is of float64: two such may become equal
counts     how many cells of a column of text are numbers, of any format
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from descend.arguments import shown
from descend.data.tables.cells import (
    DIGITS,
    EXTREME,
    INTEGER,
    MISSING,
    PLAIN,
    SEPARATED,
    CellCounts,
    in_range,
    is_number,
)
from descend.errors import library

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EXACT", "check_exact", "count_cells", "inexact_columns", "is_exact", "with_numbers", "without_missing"]

EXACT = 2**53  # integers up to here are all in float64
_FIRST_CELLS = 100


def without_missing(table: Any, marks: Iterable[str]) -> Any:
    """A table or a batch in whose columns of text some cells are missing values."""
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    absent = arrow.array(sorted(marks), arrow.string())
    for number, field in enumerate(table.schema):
        if arrow.types.is_string(field.type):
            cells = table.column(number)
            found = compute.is_in(cells, value_set=absent)
            if compute.any(found).as_py():
                table = table.set_column(number, field.name, compute.if_else(found, None, cells))
    return table


def with_numbers(table: Any, decimal: str, missing: Iterable[str], texts: Iterable[str] = ()) -> Any:
    """A table in which columns of texts such as 1,234.5 and 12,345,678 are numbers.

    They are if all of a column are of this form, and one can be nothing else: 1,234 alone may be a fraction. Where
    commas are before fractions, 1.234 can be none.

    Args:
        table: The table.
        decimal: What is before fractions.
        missing: Cells that are no values.
        texts: Names of columns that stay text.

    Raises:
        ValueError: the names come again in a column of numbers, or a number is an integer that float64 cannot hold.
    """
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    group, kept = "." if decimal == "," else ",", frozenset(texts)
    form = rf"^\s*[+-]?(?:\d{{1,3}}|[1-9]\d{{0,2}}(?:[{group}]\d{{3}})+)(?:[{decimal}]\d+)?\s*$"
    alone = r"|\s*$" if decimal == "," else ""
    certain = rf"[{group}]\d{{3}}(?:[{group}]\d{{3}}|[{decimal}]{alone})"
    absent_texts = arrow.array(sorted(missing))
    for number, field in enumerate(table.schema):
        if not arrow.types.is_string(field.type) or field.name in kept:
            continue
        cells = table.column(number)
        _check_names_once(field.name, cells, absent_texts)
        for some in (cells.slice(0, _FIRST_CELLS), cells):  # most columns of text show it soon
            absent = compute.is_in(some, value_set=absent_texts)
            if not compute.all(compute.or_(absent, compute.match_substring_regex(some, form))).as_py():
                break
        else:
            if compute.any(compute.match_substring_regex(cells, certain)).as_py():
                plain = compute.replace_substring(compute.utf8_trim_whitespace(cells), group, "")
                plain = compute.replace_substring(plain, decimal, ".")
                plain = compute.if_else(compute.is_in(cells, value_set=absent_texts), None, plain)
                check_exact(field.name, plain)
                table = table.set_column(number, field.name, plain.cast(arrow.float64()))
    return table


def _check_names_once(name: str, cells: Any, missing: Any) -> None:
    """Check that a column of numbers is not one of text because names come again, as in files that were joined."""
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    again = compute.equal(cells, name)
    if is_number(name) or not compute.any(again).as_py():
        return
    rows = compute.indices_nonzero(again)
    rest = cells.filter(compute.and_(compute.invert(again), compute.invert(compute.is_in(cells, value_set=missing))))
    if len(rest) and all(map(is_number, rest.slice(0, _FIRST_CELLS).to_pylist())):
        try:
            rest.cast(arrow.float64())
        except arrow.ArrowInvalid:
            return
        raise ValueError(
            f"row {rows[0].as_py():,} has the names of the columns again ('{name}'), as {len(rows):,} of the rows: "
            f"remove them, or pass skip_bad={len(rows)}"
        )


def inexact_columns(table: Any, with_zeros: bool = False) -> list[str]:
    """The columns of float64 with numbers so large, or zeros, that those in the file may have been others."""
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    found: list[str] = []
    for number, field in enumerate(table.schema):
        if arrow.types.is_floating(field.type):
            largest = compute.min_max(table.column(number))
            ends = [abs(one) for one in (largest["min"].as_py(), largest["max"].as_py()) if one is not None]
            zeros = with_zeros and compute.any(compute.equal(table.column(number), 0.0)).as_py()
            if zeros or (ends and max(ends) >= EXACT):
                found.append(field.name)
    return found


def is_exact(text: str) -> bool:
    """Whether an integer is one of float64, or what such a number is written as."""
    value, number = int(text), float(text)
    return abs(value) <= EXACT or abs(number) == float("inf") or value in (int(number), int(Decimal(repr(number))))


def check_exact(name: str, cells: Any, first: int = 0) -> None:
    """Check that no integer in a column of text is changed when it becomes one of float64, and no number leaves it.

    Args:
        name: Of the column.
        cells: Of some rows.
        first: The number of the first of these rows.

    Raises:
        ValueError: one is.
    """
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    cells = compute.utf8_trim_whitespace(cells.cast(arrow.large_string()))
    for row in compute.indices_nonzero(compute.fill_null(_matching_number(compute, cells), False)).to_pylist():
        try:
            in_range(cells[row].as_py().replace(",", "."))
        except ValueError as error:
            raise ValueError(
                f"row {first + row:,}, column '{name}': {error}: text=['{name}'] keeps the column as it is written"
            ) from None
    long = compute.fill_null(compute.match_substring_regex(cells, r"^[+-]?0*[1-9]\d{15,308}$"), False)
    for row in compute.indices_nonzero(long).to_pylist():
        if not is_exact(text := cells[row].as_py()):
            raise ValueError(
                f"row {first + row:,}, column '{name}': {shown(text)} is more than 2**53 and no number of float64, so "
                f"different ones would become equal: text=['{name}'] keeps the column as it is written"
            )


def _matching_number(compute: Any, cells: Any) -> Any:
    extreme = compute.match_substring_regex(cells, EXTREME)
    return compute.and_(extreme, compute.match_substring_regex(cells, rf"^[+-]?(?:{DIGITS}|\d+,\d+)(?:[eE][+-]?\d+)?$"))


def count_cells(values: Any, missing: Iterable[str] = MISSING) -> CellCounts:
    """The counts of a chunked Arrow array of text; places are numbers of rows in it."""
    arrow, compute = library("pyarrow", "a table"), library("pyarrow.compute", "a table")

    if not len(values):
        return CellCounts()
    values = values.cast(arrow.large_string())
    absent = compute.or_(
        compute.is_null(values), compute.fill_null(compute.is_in(values, value_set=_set(arrow, missing)), True)
    )
    plain = _matching(compute, values, PLAIN, absent)
    number, there = int(compute.sum(plain).as_py() or 0), len(values) - int(compute.sum(absent).as_py() or 0)
    if number == there:
        integers = int(compute.sum(_matching(compute, values, INTEGER, absent)).as_py() or 0)
        return CellCounts(number, integers)
    odd = compute.invert(compute.or_(plain, absent))
    separated = int(compute.sum(compute.and_(_matching(compute, values, SEPARATED, absent), odd)).as_py() or 0)
    integers = int(compute.sum(_matching(compute, values, INTEGER, absent)).as_py() or 0)
    place = compute.index(odd, True).as_py()
    return CellCounts(number, integers, separated, there - number - separated, (place, values[place].as_py()))


def _set(arrow: Any, texts: Iterable[str]) -> Any:
    return arrow.array(sorted(texts), arrow.large_string())


def _matching(compute: Any, values: Any, form: str, absent: Any) -> Any:
    found = compute.fill_null(compute.match_substring_regex(values, form), False)
    return compute.and_(found, compute.invert(absent))
