"""JSON lines: an object a line, plain or compressed by gzip. A field for each key.

Keys that a line lacks are missing values; objects within objects are fields NAME.PART, lists as those of Parquet.

Source: https://jsonlines.org
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.arrow_source import MAX_COLUMNS
from descend.data.bad_rows import repaired_jsonl
from descend.data.file_format import FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.text_tables import BLOCK_BYTES, IN_MEMORY_BYTES, TextTables, decompressed
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS"]

_DEEPEST = 100  # objects and lists within each other: Arrow's parser calls itself for each, and would crash
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def _check(path: Path) -> None:
    """Refuse what Arrow's parser would crash over, or be busy with for minutes.

    Raises:
        DataError: a row is nested too deeply, or the first one has too many keys.
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
    if first == 0:
        line = rows.partition(b"\n")[0]
        if line.count(b":") > MAX_COLUMNS:
            with suppress(ValueError, RecursionError):  # the parser says what is wrong
                if len(json.loads(line)) > MAX_COLUMNS:
                    raise DataError(f"{path}: row 0 has more than {MAX_COLUMNS:,} keys; at most that many are read")
    characters = np.frombuffer(rows, np.uint8)
    ends = np.append(np.flatnonzero(characters == ord("\n")), len(rows))
    begins = np.append(0, ends[:-1] + 1)
    opening = np.append(0, np.cumsum((characters == ord("{")) | (characters == ord("[")), dtype=np.int64))
    for number in np.flatnonzero(opening[ends] - opening[begins] > _DEEPEST).tolist():
        plain = np.frombuffer(_TEXT.sub(b"", rows[begins[number] : ends[number]]), np.uint8)
        steps = np.isin(plain, (ord("{"), ord("["))).astype(np.int64) - np.isin(plain, (ord("}"), ord("]")))
        if np.cumsum(steps).max(initial=0) > _DEEPEST:
            raise DataError(
                f"{path}: row {first + number} is nested more than {_DEEPEST} deep; write it with fewer levels"
            )
    return first + len(ends)


def _parse(path: Path) -> Iterable[Any]:
    arrow_json = library("pyarrow.json", "a file of JSON lines")
    how = arrow_json.ReadOptions(block_size=BLOCK_BYTES)
    with decompressed(path) as stream:
        if (begin := stream.read(64).lstrip()).startswith(b"["):
            raise DataError(f"{path} is one list of JSON, {begin[:20]!r}...; write an object a line, without the list")
    _check(path)
    with decompressed(path) as stream:
        if path.stat().st_size <= IN_MEMORY_BYTES and not path.name.endswith(".gz"):
            yield arrow_json.read_json(stream, read_options=how)
        else:
            yield from arrow_json.open_json(stream, read_options=how)


def _open_jsonl(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    return samples_of_tables(TextTables(paths, _parse, options.skip_bad, repaired_jsonl), options)


FILE_FORMATS = (
    FileFormat(
        "jsonl",
        (".jsonl", ".ndjson", ".json"),
        _open_jsonl,
        frozenset({"columns", "length", "tokenizer"}),
        recognizes=lambda begin: begin.lstrip().startswith(b"{") and b'"' in begin,
    ),
)
