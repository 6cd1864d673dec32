"""Parquet files: a field for each column; row groups are read when a sample of theirs is.

Folders called NAME=VALUE are columns as well, see `descend.data.tables.partitions`.

A row group has to be decoded for any row of it, and in random order the first batch has rows of most of them. So it
takes its rows while the groups are decoded, and nothing else is kept; only then columns are decoded to be kept, in
memory as far as they fit, the others in a temporary folder. The former takes a fraction of the time of the latter.

Source: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.expansion import FREE_BYTES, check_expansion
from descend.data.file_format import IMAGE_OPTIONS, FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.tables.arrow_columns import class_names, empty_table, flattened
from descend.data.tables.arrow_source import MAX_COLUMNS, Chunk
from descend.data.tables.joined_schemas import in_schema, joined_schema
from descend.data.tables.parquet_footer import TRAILER_BYTES, column_chunks
from descend.data.tables.partitions import with_partitions
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.tables.parquet_footer import ColumnChunk

__all__ = ["FILE_FORMATS", "MAX_GROUP_ROWS", "ParquetFiles"]

MAX_FOOTER_BYTES = 2**26
_NUMBER_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARY_BYTES = 2**24
_SCANNED_ROWS = 2**17  # that are decoded at once where few of them are wanted
MAX_GROUP_ROWS = 2**27  # a few bytes can promise any number of equal values


class ParquetFiles:
    """Parquet files with the same columns; see `TableFiles`.

    Args:
        paths: The files.
        chosen: Whether the caller names the columns.

    Raises:
        DataError: one is damaged, or has other columns than the others.
    """

    decodes = True

    def __init__(self, paths: Sequence[Path], chosen: bool = False) -> None:
        self.chunks: list[Chunk] = []
        self._full: set[str] = set()
        self._footers: dict[Path, Any] = {}  # parsed once: there may be thousands of row groups
        self._groups: dict[Path, list[list[ColumnChunk]]] = {}
        schemas: dict[Path, Any] = {}
        for path in paths:
            _check_footer(path)
            file = self._open(path)
            self._footers[path] = file.metadata
            groups = self._groups[path] = column_chunks(path)
            if file.metadata.num_columns > MAX_COLUMNS:
                raise DataError(f"{path} has {file.metadata.num_columns:,} columns; at most {MAX_COLUMNS:,} are read")
            schemas[path], first = empty_table(file.schema_arrow).schema.remove_metadata(), 0
            self.class_names = class_names(file.schema_arrow)
            full = set(schemas[path].names)
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                if group.num_rows > MAX_GROUP_ROWS:
                    raise DataError(
                        f"{path}: row group {index} promises {group.num_rows:,} rows; write the file with smaller row "
                        "groups, such as pyarrow.parquet.write_table(..., row_group_size=100_000)"
                    )
                self.chunks.append(Chunk(path, index, first, group.num_rows))
                first += group.num_rows
                full &= {one.path for one in groups[index] if one.nulls == 0}
                _check_size(f"{path}: row group {index}", groups[index])
            self._full = full if len(paths) == 1 or path == paths[0] else self._full & full
        self.schema: Any = joined_schema(schemas, chosen)

    def _open(self, path: Path, dictionaries: Sequence[str] = ()) -> Any:
        """A file, of which some columns stay numbers of texts in a dictionary."""
        parquet = library("pyarrow.parquet", "a Parquet file")
        try:
            return parquet.ParquetFile(
                path, memory_map=True, metadata=self._footers.get(path), read_dictionary=list(dictionaries)
            )
        except Exception as error:  # pyarrow raises OSError, ValueError and others of its own
            raise DataError(f"{path} is not a Parquet file, or was cut off: {str(error).splitlines()[0]}") from error

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of a row group. A file is opened for each, since threads and processes cannot share one."""
        group = self._groups[chunk.path][chunk.index]
        with self._open(chunk.path, _texts_of_dictionaries(group, FREE_BYTES)) as file:
            stored = file.read_row_group(chunk.index, columns=_tops(file, columns), use_threads=True)
        stored.validate(full=True)  # text of a damaged file need not be UTF-8
        table = flattened(stored)
        if table.num_rows != chunk.rows:
            raise ValueError(f"the row group has {table.num_rows:,} rows and promises {chunk.rows:,}")
        return in_schema(table, self._of(columns))

    def _of(self, columns: Sequence[str]) -> Any:
        return library("pyarrow", "a Parquet file").schema([self.schema.field(name) for name in columns])

    def scan(self, chunk: Chunk, rows: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some rows of a row group, decoded up to the last of them, with the texts of dictionaries for these alone."""
        arrow = library("pyarrow", "a Parquet file")
        wanted, back = np.unique(rows, return_inverse=True)
        parts: list[Any] = []
        begin = 0
        group = self._groups[chunk.path][chunk.index]
        with self._open(chunk.path, _texts_of_dictionaries(group, 0)) as file:
            tops = _tops(file, columns)
            for batch in file.iter_batches(_SCANNED_ROWS, row_groups=[chunk.index], columns=tops, use_threads=True):
                first, last = np.searchsorted(wanted, (begin, begin + len(batch)))
                if first < last:
                    parts.append(batch.take(arrow.array(wanted[first:last] - begin)))
                begin += len(batch)
                if last == len(wanted):
                    break
        if wanted[-1] >= begin:
            raise ValueError(f"the row group has {begin:,} rows and promises {chunk.rows:,}")
        stored = arrow.Table.from_batches(parts)
        stored.validate(full=True)
        return in_schema(flattened(stored), self._of(columns)).take(back)

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column, where the statistics in the files say it."""
        kind = self.schema.field(column).type
        if kind.bit_width < 32:  # stored as integers of another width
            return None, None
        signed = not str(kind).startswith("u")
        chunks = [one for groups in self._groups.values() for group in groups for one in group if one.path == column]
        ends = [end for one in chunks for end in (one.low, one.high) if end is not None]
        found = [int.from_bytes(end, "little", signed=signed) for end in ends]
        return min(found, default=None), max(found, default=None)

    def without_nulls(self, column: str) -> bool:
        """Whether the statistics in the files say so."""
        return column in self._full


def _tops(file: Any, columns: Sequence[str]) -> list[str]:
    """The columns of a file that have these ones, which may be parts of them."""
    tops = set(file.schema_arrow.names)
    return list(dict.fromkeys(top for name in columns for top in _prefixes(name) if top in tops))


def _prefixes(name: str) -> list[str]:
    """A, A.B and A.B.C of "A.B.C": which of them is the column of the file that has this part."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _check_footer(path: Path) -> None:
    """Check that the description of a file, which is read whole, is not too long to be read."""
    with path.open("rb") as file:
        file.seek(0, 2)
        if (size := file.tell()) < TRAILER_BYTES:
            return
        file.seek(size - TRAILER_BYTES)
        length = int.from_bytes(file.read(4), "little")
        ends = file.read() == b"PAR1" and length <= size - TRAILER_BYTES  # otherwise the library says what is wrong
    if ends and length > MAX_FOOTER_BYTES:
        raise DataError(
            f"{path} has a footer of {length:,} bytes; at most {MAX_FOOTER_BYTES:,} are read: write it with larger row "
            "groups or fewer columns"
        )


def _check_size(place: str, group: Sequence[ColumnChunk]) -> None:
    """Check that columns of numbers do not become far larger than they are in the file."""
    numbers = [one for one in group if one.type in _NUMBER_BYTES]
    promised = sum(one.values * _NUMBER_BYTES[one.type] for one in numbers)
    stored = sum(one.stored_bytes for one in numbers)
    check_expansion(place, stored, promised, "write it with smaller row groups")


def _texts_of_dictionaries(group: Sequence[ColumnChunk], free_bytes: int) -> list[str]:
    """Columns whose texts may be far larger than what is stored; of a large column the texts are stored themselves.

    Args:
        group: The columns of a row group.
        free_bytes: No column that can have no more than this.
    """
    return [
        one.path
        for one in group
        if one.type == "BYTE_ARRAY" and one.has_dictionary
        if one.plain_bytes < _DICTIONARY_BYTES
        if one.values * one.plain_bytes > free_bytes
    ]


def _open_parquet(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    files = ParquetFiles(paths, options.columns is not None)
    return samples_of_tables(with_partitions(files, paths), options)


FILE_FORMATS = (
    FileFormat(
        "parquet",
        (".parquet", ".pq"),
        _open_parquet,
        frozenset({"columns", "length", "tokenizer", "text"}) | IMAGE_OPTIONS,
        recognizes=lambda begin: begin.startswith(b"PAR1"),
        by_place=True,
    ),
)
