"""JSON lines: an object a line, plain or compressed; or one list of objects. A field for each key.

Keys that a line lacks are missing values; objects within objects are fields NAME.PART, lists as those of Parquet.

Source: https://jsonlines.org
"""

from __future__ import annotations

import codecs
import io
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from descend.arguments import shown
from descend.data.expansion import compression_of, opened
from descend.data.file_format import FileFormat
from descend.data.packed_text import samples_of_tables
from descend.data.tables.bad_rows import repaired_jsonl
from descend.data.tables.cells import in_range, may_be_tiny
from descend.data.tables.numbers import EXACT, is_exact
from descend.data.tables.table_files import with_partitions
from descend.data.tables.text import BLOCK_BYTES, IN_MEMORY_BYTES, TextTables, decompressed
from descend.errors import DataError, library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS"]

MAX_KEYS = 32_768  # of an object
_DEEPEST = 100  # objects and lists within each other: Arrow's parser calls itself for each, and would crash
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*+)"[ \t]*:')
_LONG = re.compile(rb"\d{16}")
_BLANKS = " \t\n\r"  # of JSON
_LIST_BYTES = 2**28
_OTHER_FORMS = (frozenset({"columns", "index", "data"}), frozenset({"schema", "data"}))
_SAMPLED = 256  # rows of a block
_FEW_KEYS = 64
# Arrow's parser takes a fifth of a microsecond for each key that a row lacks, and there may be any number of them.
_ABSENT, _ABSENT_A_BYTE = 2**23, 16


def _check(path: Path) -> None:
    """Refuse what Arrow's parser would crash over, or be busy with for minutes.

    Raises:
        DataError: a row is nested too deeply, has too many keys, or rows have too few of the keys that others have.
    """
    row, rest = 0, b""
    with decompressed(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if not newline:
                if len(rest) > BLOCK_BYTES:
                    return  # no row may be so long, which the parser says
                continue
            row = _check_rows(path, whole, row)
    _check_rows(path, rest, row)


def _check_rows(path: Path, rows: bytes, first: int) -> int:
    """Check some whole rows, of which the first has a number; the number of the one after them."""
    characters = np.frombuffer(rows, np.uint8)
    ends = np.append(np.flatnonzero(characters == ord("\n")), len(rows))
    begins = np.append(0, ends[:-1] + 1)
    numbers = np.flatnonzero(ends > begins)  # of rows that are not blank
    begins, ends, after = begins[numbers], ends[numbers], first + len(ends)
    objects = characters == ord("{")
    opening = np.append(0, np.cumsum(objects | (characters == ord("[")), dtype=np.int64))
    for at in np.flatnonzero(opening[ends] - opening[begins] > _DEEPEST).tolist():
        plain = np.frombuffer(_TEXT.sub(b"", rows[begins[at] : ends[at]]), np.uint8)
        steps = np.isin(plain, (ord("{"), ord("["))).astype(np.int64) - np.isin(plain, (ord("}"), ord("]")))
        if np.cumsum(steps).max(initial=0) > _DEEPEST:
            raise DataError(
                f"{path}: row {first + numbers[at]} is nested more than {_DEEPEST} deep; write it with fewer levels"
            )
    for at in range(len(ends)) if may_be_tiny(rows) else ():
        _check_range(f"{path}: row {first + numbers[at]}", rows[begins[at] : ends[at]])
    colons = np.flatnonzero(characters == ord(":"))
    in_row = np.searchsorted(colons, ends) - np.searchsorted(colons, begins)
    for at in np.flatnonzero(in_row > MAX_KEYS).tolist():
        if len(set(_KEY.findall(rows[begins[at] : ends[at]]))) > MAX_KEYS:
            raise DataError(
                f"{path}: row {first + numbers[at]} has more than {MAX_KEYS:,} keys; at most so many are read"
            )
    chosen = np.unique(np.linspace(0, len(ends) - 1, min(_SAMPLED, len(ends)), dtype=np.int64)).tolist()
    if _may_lack_keys([rows[begins[at] : ends[at]] for at in chosen]):
        _check_absent(path, rows, int(objects.sum()), first)
    return after


def _check_range(place: str, row: bytes) -> None:
    """Check that float64 has the numbers of a row."""
    try:
        json.loads(row if may_be_tiny(row) else b"0", parse_float=in_range)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):  # the parser says what is wrong
        return
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error


def _may_lack_keys(some: Sequence[bytes]) -> bool:
    """Whether rows have many keys of which some rows lack some."""
    keys = [frozenset(_KEY.findall(row)) for row in some]
    early, late = (frozenset[bytes]().union(*part) for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]))
    return (len(early | late) > _FEW_KEYS and len(set(keys)) > 1) or early != late


def _check_absent(path: Path, rows: bytes, objects: int, first: int) -> None:
    """Check that the table of some rows has not far more cells than values; `objects` is the number of all objects."""
    allowed = max(_ABSENT, _ABSENT_A_BYTE * len(rows))
    if len(set(_KEY.findall(rows))) * objects <= allowed:
        return
    levels, values = _Level(), 0
    for row in rows.splitlines():
        try:
            values += levels.note(json.loads(row)) if row.strip() else 0
        except (ValueError, RecursionError):  # the parser says what is wrong
            return
    if (cells := levels.cells()) - values > allowed:
        raise DataError(
            f"{path}, from row {first} on: {values:,} values have so many different keys that they make a table of "
            f'{cells:,} cells; write what differs as values: {{"name": ..., "value": ...}}'
        )


class _Level:
    """The objects at one place of the rows: how many there are, and all of their keys."""

    def __init__(self) -> None:
        self.count = 0  # of objects in lists, and of rows
        self.below: dict[str, _Level] = {}

    def note(self, value: Any, in_list: bool = True) -> int:
        """Count an object, or the objects of a list, and return the number of its values."""
        if isinstance(value, list):
            return sum(self.note(one) for one in cast("list[Any]", value))
        self.count += in_list
        if not isinstance(value, dict):
            return 0
        items = cast("dict[str, Any]", value)
        for key in items:
            if key not in self.below:
                self.below[key] = _Level()
        return len(items) + sum(
            self.below[key].note(inner, in_list=False)
            for key, inner in items.items()
            if isinstance(inner, (dict, list))
        )

    def cells(self, around: int = 0) -> int:
        """The cells of the table of all objects, of which one that is missing has cells as well."""
        rows = self.count or around
        return sum(rows + one.cells(rows) for one in self.below.values())


def _behind_blanks(text: str, at: int) -> int:
    """The first place from `at` on where there is no blank."""
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _lines_of_list(path: Path) -> bytes:
    """The objects of a file that is one list of JSON, a line each.

    Raises:
        DataError: it is too long, or no list of objects.
    """
    with decompressed(path) as stream:
        content = stream.read(_LIST_BYTES + 1)
    if len(content) > _LIST_BYTES:
        raise DataError(
            f"{path} is one list of JSON, of which at most {_LIST_BYTES:,} bytes are read: write an object a line, "
            "without the list"
        )
    text, decoder, lines = content.decode("utf-8-sig"), json.JSONDecoder(), []
    at = _behind_blanks(text, text.index("[") + 1)
    while at < len(text) and text[at] != "]":
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: row {len(lines)} of its list is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {len(lines)} of its list is {shown(row)}, and an object is needed")
        one = text[at:end]
        lines.append(json.dumps(row) if "\n" in one or "\r" in one else one)
        after = _behind_blanks(text, end)
        if text[after : after + 1] not in (",", "]"):
            raise DataError(f"{path}: its list ends behind row {len(lines) - 1}, or lacks a comma there")
        at = _behind_blanks(text, after + (text[after] == ","))
    return "\n".join(lines).encode()


def _parse(path: Path, texts: Sequence[str] = ()) -> Iterable[Any]:
    arrow, arrow_json = library("pyarrow", "a list of JSON"), library("pyarrow.json", "a file of JSON lines")
    how = arrow_json.ReadOptions(block_size=BLOCK_BYTES)
    with decompressed(path) as stream:
        is_list = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    lines = None
    if is_list:
        lines = _lines_of_list(path)
        _check_rows(path, lines, 0)
    else:
        _check(path)
        _check_by_rows(path)

    def rows() -> BinaryIO:
        return opened(path) if lines is None else io.BytesIO(lines)

    inexact: set[str] = set()
    with arrow.PythonFile(_WithTexts(rows(), texts), "r") if texts or lines else decompressed(path) as stream:
        if lines is not None or (path.stat().st_size <= IN_MEMORY_BYTES and compression_of(path) is None):
            parts: Iterable[Any] = [arrow_json.read_json(stream, read_options=how)]
        else:
            parts = arrow_json.open_json(stream, read_options=how)
        for part in parts:
            inexact.update(_inexact(part.schema.names, part.columns))
            yield part
    if inexact:
        _check_integers(rows(), sorted(inexact))


class _WithTexts(io.RawIOBase):
    """Rows in which the values of some keys are texts, as they are written.

    Args:
        rows: A file of objects, one a line.
        texts: The keys; NAME.PART is one of an object within the row.
    """

    def __init__(self, rows: BinaryIO, texts: Sequence[str]) -> None:
        self._rows, self._texts = rows, texts
        self._held = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:  # as Arrow calls it
        """The next bytes."""
        if not self._texts:
            return self._rows.read(size)
        parts = [self._held]
        total = len(self._held)
        while (size < 0 or total < size) and (line := self._rows.readline()):
            parts.append(self._changed(line))
            total += len(parts[-1])
        whole = b"".join(parts)
        end = len(whole) if size < 0 else size
        self._held = whole[end:]
        return whole[:end]

    def _changed(self, line: bytes) -> bytes:
        try:
            row, written = json.loads(line), json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError):  # the parser says what is wrong
            return line
        if not isinstance(row, dict):
            return line
        for name in self._texts:
            for place, raw, key in _places(cast("Any", row), written, name):
                value = raw[key]
                if value is not None and not isinstance(value, (list, dict)):
                    place[key] = str(value).lower() if isinstance(value, bool) else value
        return json.dumps(row).encode() + b"\n"


def _places(row: dict[str, Any], written: Any, name: str) -> Iterator[tuple[dict[str, Any], Any, str]]:
    """The objects of two equal rows that have the value of a column, and the key of it there."""
    if name in row:
        yield row, written, name
        return
    for at in (place for place, one in enumerate(name) if one == "."):
        inner = row.get(name[:at])
        if isinstance(inner, dict):
            yield from _places(cast("Any", inner), written[name[:at]], name[at + 1 :])


def _inexact(names: Sequence[str], columns: Sequence[Any], before: str = "") -> Iterator[str]:
    """The columns of float64 whose numbers are so large that integers among them may have been rounded."""
    arrow, compute = library("pyarrow", "JSON"), library("pyarrow.compute", "JSON")
    for name, values in zip(names, columns, strict=True):
        kind = values.type
        while arrow.types.is_list(kind):
            values = compute.list_flatten(values)
            kind = values.type
        if arrow.types.is_struct(kind):
            parts = [compute.struct_field(values, place) for place in range(kind.num_fields)]
            yield from _inexact([part.name for part in kind], parts, f"{before}{name}.")
        elif arrow.types.is_floating(kind):
            ends = compute.min_max(values)
            if any(abs(end.as_py() or 0) >= EXACT for end in ends.values()):
                yield before + name


def _check_integers(rows: BinaryIO, names: Sequence[str]) -> None:
    """Check that no integer was rounded in columns of float64.

    Raises:
        ValueError: one was.
    """
    number = -1
    for line in rows:
        number += bool(line.strip())
        if _LONG.search(line) is None:
            continue
        row = json.loads(line)
        for name in names:
            for place, _, key in _places(row, row, name):
                for value in _leaves(place[key]):
                    if isinstance(value, int) and not isinstance(value, bool) and not is_exact(str(value)):
                        raise ValueError(
                            f"row {number:,}, '{name}': {value} is more than 2**53 and no number of float64, so "
                            f"different ones would become equal: text=['{name}'] keeps them as they are written"
                        )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _leaves(one)
    else:
        yield value


def _check_by_rows(path: Path) -> None:
    """Check that a file is no table by columns, which would be one sample: the other forms of pandas' `to_json`."""
    if path.stat().st_size > _LIST_BYTES or compression_of(path) is not None:
        return
    with decompressed(path) as stream:
        content = stream.read(_LIST_BYTES)
    if b"\n" in content.strip():
        return
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):  # the parser says what is wrong
        return
    rows = [frozenset(cast("dict[str, Any]", one)) if isinstance(one, dict) else None for one in whole.values()]
    by_index = len(rows) > 0 and rows[0] is not None and len(set(rows)) == 1 and all(map(str.isdecimal, rows[0]))
    if (by_index and rows[0]) or frozenset(whole) in _OTHER_FORMS:
        raise DataError(
            f"{path} is a table by columns, as pandas writes it: write an object for each row, by "
            "to_json(orient='records', lines=True)"
        )


def _open_jsonl(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    parse = partial(_parse, texts=tuple(options.text or ()))
    tables = TextTables(paths, parse, options.skip_bad, repaired_jsonl, may_lack=True)
    return samples_of_tables(with_partitions(tables, paths, several=True), options)


def _is_json(begin: bytes) -> bool:
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()
    return text.startswith((b"{", b"[{")) and b'"' in text


FILE_FORMATS = (
    FileFormat(
        "jsonl",
        (".jsonl", ".ndjson", ".json"),
        _open_jsonl,
        frozenset({"columns", "length", "tokenizer", "text"}),
        recognizes=_is_json,
    ),
)
