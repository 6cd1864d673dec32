"""JSON lines: an object a line, plain or compressed by gzip. A field for each key.

Keys that a line lacks are missing values; objects within objects are fields NAME.PART, lists as those of Parquet.

Source: https://jsonlines.org
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def _parse(path: Path) -> Iterable[Any]:
    json = library("pyarrow.json", "a file of JSON lines")
    how = json.ReadOptions(block_size=BLOCK_BYTES)
    with decompressed(path) as stream:
        if (begin := stream.read(64).lstrip()).startswith(b"["):
            raise DataError(f"{path} is one list of JSON, {begin[:20]!r}...; write an object a line, without the list")
    with decompressed(path) as stream:
        if path.stat().st_size <= IN_MEMORY_BYTES and not path.name.endswith(".gz"):
            yield json.read_json(stream, read_options=how)
        else:
            yield from json.open_json(stream, read_options=how)


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
