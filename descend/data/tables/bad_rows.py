"""Finds the rows of a text that cannot be part of a table, so that the others can be read.

A copy of the file is made in which each bad row has the text of the first good one, so that rows keep their numbers and
columns their types; reading a bad row gives the reason instead. Bad is

    a row of a CSV table    with another number of cells than the first row, or with a cell that is not a number in a
                            column that has numbers but for such cells
    a line of JSON lines    that is not an object, or has a value of another kind than most lines have for this key

as long as there are no more of these than are allowed; a column with more cells that are no numbers is one of text. In
both, a row is bad that is not UTF-8 or has more than `MAX_ROW_CHARACTERS`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from descend.arguments import shown
from descend.data.expansion import opened, plain_name
from descend.data.tables.cells import MISSING, csv_rows, is_number
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from descend.data.file_format import ReadOptions

__all__ = ["Repaired", "looks_numeric", "repaired_csv", "repaired_jsonl"]

MAX_ROW_CHARACTERS = 2**24
_LISTED = 5
_KINDS = {int: "number", float: "number", str: "text", bool: "boolean", list: "list", dict: "object"}


class Repaired:
    """A copy of a file without its bad rows; it is removed with this object.

    Args:
        rows: The text of each row, or the reason for which it is bad.
        head: What comes before the rows.
        place: The name of the file in errors.
        allowed: How many rows may be bad.

    Attributes:
        path: Of the copy.
        bad: The reason for each bad row, by its number from 0 up.

    Raises:
        DataError: more rows are bad, or no row is good.
    """

    def __init__(self, rows: Iterator[_Row], head: str, place: Path, allowed: int) -> None:
        handle, name = tempfile.mkstemp(prefix="descend-rows-", suffix=plain_name(place)[-20:])
        self.path = Path(name)
        self.bad: dict[int, str] = {}
        weakref.finalize(self, self.path.unlink, missing_ok=True)
        waiting, good, number = 0, "", -1
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(head)
            for number, row in enumerate(rows):
                if row.reason is not None:
                    self.bad[number] = row.reason
                    _check_allowed(self.bad, allowed, place)
                    waiting += not good
                    file.write(good)
                    continue
                if not good:
                    good = row.text if row.text.endswith("\n") else row.text + "\n"
                    file.write(good * waiting)
                file.write(row.text)
        if not good and number >= 0:
            raise DataError(f"{place} has no row that can be read: row 0: {self.bad[0]}")


@dataclass(frozen=True)
class _Row:
    text: str
    reason: str | None = None


def _opened(path: Path) -> TextIO:
    return io.TextIOWrapper(opened(path), encoding="utf-8-sig", errors="surrogateescape", newline="")


def _lines(file: TextIO) -> Iterator[str]:
    """Lines, of which too long ones are cut off behind `MAX_ROW_CHARACTERS`."""
    while line := file.readline(MAX_ROW_CHARACTERS + 1):
        rest = line
        while len(rest) > MAX_ROW_CHARACTERS and not rest.endswith("\n"):
            rest = file.readline(MAX_ROW_CHARACTERS + 1)
        yield line


def _general_reason(text: str) -> str | None:
    if len(text) > MAX_ROW_CHARACTERS:
        return f"it has more than {MAX_ROW_CHARACTERS:,} characters"
    if not text.isascii() and any("\udc80" <= one <= "\udcff" for one in text):
        return "it is not UTF-8"
    return None


def _check_allowed(bad: Mapping[int, str], allowed: int, path: Path) -> None:
    if len(bad) > allowed:
        listed = [f"    row {row}: {reason}" for row, reason in list(bad.items())[:_LISTED]]
        raise DataError([f"{path}: more than skip_bad={allowed} rows cannot be read:", *listed])


# ---- CSV


def _csv_rows(path: Path, form: ReadOptions) -> Iterator[tuple[str, list[str]]]:
    """The text of each row, and its cells."""
    held: list[str] = []
    with _opened(path) as file:

        def lines() -> Iterator[str]:
            for line in _lines(file):
                held.append(line)
                yield line

        rows = csv_rows(lines(), form.separator or ",", form.quote or "", form.escape)
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error:  # a cell of more characters than the module takes
                cells = []
            text = "".join(held)
            held.clear()
            if cells or text.strip():
                yield text, cells


def looks_numeric(texts: Sequence[str | None], allowed: int) -> bool:
    """Whether a column of text would be one of numbers without a few of its cells."""
    there = [text for text in texts if text is not None and text not in MISSING]
    odd = sum(not is_number(text) for text in there)
    return 0 < odd <= allowed and len(there) > 2 * odd


def repaired_csv(path: Path, form: ReadOptions, allowed: int, missing: frozenset[str] = MISSING) -> Repaired:
    """A copy of a CSV file without its bad rows.

    Args:
        path: Of the file, in UTF-8.
        form: What is between and around its cells, whether the first row has names, and columns in which any cell is
            good.
        allowed: How many rows may be bad.
        missing: Cells that are no values.

    Raises:
        DataError: more rows are bad than are allowed, or all are.
    """
    first = -1 if form.header else 0
    odd: Counter[int] = Counter()
    numbers: Counter[int] = Counter()
    bad: dict[int, str] = {}
    head, columns, free = "", 0, frozenset[int]()
    for number, (text, cells) in enumerate(_csv_rows(path, form), start=first):
        columns = columns or len(cells)
        if number < 0:
            head, free = text, frozenset(i for i, name in enumerate(cells) if name in (form.text or ()))
            continue
        if (reason := _csv_reason(text, cells, columns)) is not None:
            bad[number] = reason
            _check_allowed(bad, allowed, path)
            continue
        for column, cell in enumerate(cells):
            if cell not in missing and column not in free:
                (numbers if is_number(cell) else odd)[column] += 1
    numeric = {column for column, count in odd.items() if count <= allowed and numbers[column] > count}

    def judged() -> Iterator[_Row]:
        for number, (text, cells) in enumerate(_csv_rows(path, form), start=first):
            if number < 0:
                continue
            reason = bad.get(number)
            for column in numeric if reason is None else ():
                if cells[column] not in missing and not is_number(cells[column]):
                    reason = f"{shown(cells[column])} in column {column + 1} is not a number, as in other rows"
            yield _Row(text, reason)

    return Repaired(judged(), head, path, allowed)


def _csv_reason(text: str, cells: Sequence[str], columns: int) -> str | None:
    if (reason := _general_reason(text)) is not None:
        return reason
    return None if len(cells) == columns else f"it has {len(cells)} cells, and the first row has {columns}"


# ---- JSON lines


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """The text of each line, the kinds of its values by key, and the reason for which it is bad."""
    with _opened(path) as file:
        for text in _lines(file):
            if not text.strip():
                continue
            reason = _general_reason(text)
            value: Any = None
            if reason is None:
                try:
                    value = json.loads(text)
                except (ValueError, RecursionError) as error:
                    reason = f"it is no JSON: {error}"
            if reason is None and not isinstance(value, dict):
                reason = f"it is {shown(value)}, and an object is needed"
            yield text, dict(_kinds("", value)) if reason is None else {}, reason


def _kinds(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if inner is None:
            continue
        yield prefix + key, _KINDS[type(inner)]
        if isinstance(inner, dict):
            yield from _kinds(f"{prefix}{key}.", cast("dict[str, Any]", inner))


def repaired_jsonl(path: Path, allowed: int) -> Repaired:
    """A copy of a file of JSON lines without its bad lines.

    Raises:
        DataError: more lines are bad than are allowed, or all are.
    """
    counts: dict[str, Counter[str]] = {}
    for _, kinds, _ in _objects(path):
        for key, kind in kinds.items():
            counts.setdefault(key, Counter())[kind] += 1
    usual = {key: of.most_common(1)[0][0] for key, of in counts.items()}

    def judged() -> Iterator[_Row]:
        for text, kinds, reason in _objects(path):
            odd = [(key, kind) for key, kind in kinds.items() if kind != usual[key]]
            if reason is None and odd:
                key, kind = odd[0]
                reason = f"'{key}' is a {kind}, and a {usual[key]} in most lines"
            yield _Row(text, reason)

    return Repaired(judged(), "", path, allowed)
