"""Parquet files: a field for each column; row groups are read when a sample of theirs is.

Folders called NAME=VALUE are columns as well, see `descend.data.tables.table_files`.

A row group has to be decoded for any row of it, and in random order the first batch has rows of most of them. So it
takes its rows while the groups are decoded, and nothing else is kept; only then columns are decoded to be kept, in
memory as far as they fit, the others in a temporary folder. The former takes a fraction of the time of the latter.

Source: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.expansion import FREE_BYTES, check_expansion
from descend.data.file_format import IMAGE_OPTIONS, FileFormat
from descend.data.packed_text import samples_of_tables
from descend.data.tables.arrow_columns import class_names, empty_table, flattened
from descend.data.tables.arrow_source import MAX_COLUMNS
from descend.data.tables.table_files import Chunk, TableFiles, in_schema, joined_schema, with_partitions
from descend.errors import DataError, library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "MAX_GROUP_ROWS", "ParquetFiles"]

MAX_FOOTER_BYTES = 2**26
_NUMBER_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARY_BYTES = 2**24
_SCANNED_ROWS = 2**17  # that are decoded at once where few of them are wanted
MAX_GROUP_ROWS = 2**27  # a few bytes can promise any number of equal values


class ParquetFiles(TableFiles):
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


# ---- the entries of the footer of a Parquet file about each column of each row group
#
# The footer is a structure of Thrift in its compact form: fields of a number and a type, integers in groups of seven
# bits. pyarrow reads it as well, but ends the process where such a description contradicts the schema, so it is not
# asked for single columns.
#
# Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
# https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

TRAILER_BYTES = 8  # the length of the footer, and a magic number
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_DEEPEST = 64  # structures within each other
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


@dataclass
class ColumnChunk:
    """A column of a row group.

    Attributes:
        path: Name of the column, with those of the structures around it before points.
        type: Physical type, as the format calls it.
        values: Number of values.
        stored_bytes: Compressed.
        plain_bytes: Decompressed, but encoded.
        has_dictionary: Whether values are numbers of entries of a dictionary.
        nulls: Number of missing values; None: not known.
        low: The least value as bytes; None: not known.
        high: The largest value, likewise.
    """

    path: str = ""
    type: str = ""
    values: int = 0
    stored_bytes: int = 0
    plain_bytes: int = 0
    has_dictionary: bool = False
    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None


class _Footer:
    """Reads values of Thrift one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        size = self._varint()
        self._at += size
        if self._at > len(self._content):
            raise IndexError
        return self._content[self._at - size : self._at]

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and the type of each field of a structure; the value has to be read or skipped before the next."""
        number = 0
        while (head := self._content[self._at]) != 0:
            self._at += 1
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 0x0F
        self._at += 1

    def entries(self) -> tuple[int, int]:
        """The number of the entries of a list, and their type."""
        head = self._content[self._at]
        self._at += 1
        return (head >> 4 if head < 0xF0 else self._varint()), head & 0x0F

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise IndexError
        if kind in (_LIST, _SET):
            count, inner = self.entries()
            for _ in range(count):
                self.skip(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._content[self._at]
                self._at += 1
                for _ in range(count):
                    self.skip(kinds >> 4, depth + 1)
                    self.skip(kinds & 0x0F, depth + 1)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind == _BINARY:
            self.binary()
        elif kind in (_BYTE, _DOUBLE):
            self._at += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):
            self._varint()


def column_chunks(path: Path) -> list[list[ColumnChunk]]:
    """For each row group its columns.

    Raises:
        DataError: the footer is damaged.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(size - TRAILER_BYTES)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - TRAILER_BYTES - length)
        footer = _Footer(file.read(length))
    groups: list[list[ColumnChunk]] = []
    try:
        for number, kind in footer.fields():
            if number == 4 and kind == _LIST:
                groups += [_group(footer) for _ in range(footer.entries()[0])]
            else:
                footer.skip(kind)
    except (IndexError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a Parquet file, or was cut off: its footer is damaged") from error
    return groups


def _group(footer: _Footer) -> list[ColumnChunk]:
    found: list[ColumnChunk] = []
    for number, kind in footer.fields():
        if number == 1 and kind == _LIST:
            found += [_chunk(footer) for _ in range(footer.entries()[0])]
        else:
            footer.skip(kind)
    return found


def _chunk(footer: _Footer) -> ColumnChunk:
    found = ColumnChunk()
    for number, kind in footer.fields():
        if number == 3 and kind == _STRUCT:
            _describe(footer, found)
        else:
            footer.skip(kind)
    return found


_NUMBERS = {5: "values", 6: "plain_bytes", 7: "stored_bytes"}


def _describe(footer: _Footer, found: ColumnChunk) -> None:
    for number, kind in footer.fields():
        if number == 1:
            place = footer.integer()
            found.type = _TYPES[place] if 0 <= place < len(_TYPES) else ""
        elif number == 3 and kind == _LIST:
            found.path = ".".join(footer.binary().decode() for _ in range(footer.entries()[0]))
        elif number in _NUMBERS:
            setattr(found, _NUMBERS[number], footer.integer())
        elif number == 12 and kind == _STRUCT:
            _note_statistics(footer, found)
        else:
            found.has_dictionary |= number == 11
            footer.skip(kind)


def _note_statistics(footer: _Footer, found: ColumnChunk) -> None:
    for number, kind in footer.fields():
        if number == 3:
            found.nulls = footer.integer()
        elif number == 5 and kind == _BINARY:
            found.high = footer.binary()
        elif number == 6 and kind == _BINARY:
            found.low = footer.binary()
        else:
            footer.skip(kind)
