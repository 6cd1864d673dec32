"""Arrow files and streams, Feather files of version 2: a field for each column.

Files are mapped into memory: a batch of records is read, and decompressed where it is compressed, when a sample of its
rows is. Streams have no index, so their headers are read once at the beginning.

A batch is checked whole before anything walks it: Arrow's functions trust offsets, lengths and numbers of dictionary
entries, and those of a damaged file lead out of its memory.

Source: https://arrow.apache.org/docs/format/Columnar.html, "IPC File Format" and "IPC Streaming Format"
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from descend.data.expansion import check_expansion
from descend.data.file_format import IMAGE_OPTIONS, FileFormat
from descend.data.packed_text import samples_of_tables
from descend.data.paths import check_mapped, head
from descend.data.tables.arrow_columns import class_names, flattened
from descend.data.tables.arrow_source import MAX_COLUMNS
from descend.data.tables.table_files import Chunk, TableFiles, in_schema, joined_schema, with_partitions
from descend.errors import DataError, library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "ArrowFiles"]

MAX_BATCHES = 2**16  # of a file
_FILE, _STREAM, _FEATHER_1 = b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"


class ArrowFiles(TableFiles):
    """Arrow files with the same columns; see `TableFiles`.

    Args:
        paths: The files.
        chosen: Whether the caller names the columns.

    Raises:
        DataError: one is damaged, or has other columns than the others.
    """

    def __init__(self, paths: Sequence[Path], chosen: bool = False) -> None:
        self.decodes = False
        self.chunks: list[Chunk] = []
        self._open: dict[Path, Any] = {}
        self._sizes = {path: path.stat().st_size for path in paths}
        schemas: dict[Path, Any] = {}
        for path in paths:
            if head(path).startswith(_FEATHER_1):
                raise DataError(f"{path} is a Feather file of version 1; write it again with pyarrow.feather")
            forms = batch_forms(path, MAX_BATCHES)
            self.decodes |= any(one.compressed for one in forms)
            batches = self._batches(path)
            try:
                # A dictionary of a file is part of its batches, so an empty table cannot be made from the schema alone.
                names = batches.schema.names
                if len(names) > MAX_COLUMNS:
                    raise DataError(f"it has {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
                named = class_names(batches.schema)
                schemas[path] = flattened(batches[0].slice(0, 0)).schema.remove_metadata()
                sizes = [one.rows for one in forms]
            except Exception as error:
                raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
            first, self.class_names = 0, named
            for index, rows in enumerate(sizes):
                self.chunks.append(Chunk(path, index, first, rows))
                first += rows
        self.schema: Any = joined_schema(schemas, chosen)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def _batches(self, path: Path) -> Any:
        """The batches of a file as tables, each read when it is looked at."""
        if path not in self._open:
            arrow = library("pyarrow", "an Arrow file")
            try:
                mapped = arrow.memory_map(str(path))
                if head(path).startswith(_FILE):
                    file = arrow.ipc.open_file(mapped)
                    self._open[path] = _CheckedBatches(file.schema, file.num_record_batches, file.get_batch)
                else:
                    stream = arrow.ipc.open_stream(mapped)
                    batches = list(stream)
                    self._open[path] = _CheckedBatches(stream.schema, len(batches), batches.__getitem__)
            except Exception as error:  # pyarrow raises OSError, ValueError and others of its own
                raise DataError(f"{path} is not an Arrow file, or was cut off: {str(error).splitlines()[0]}") from error
        return self._open[path]

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of a batch of records."""
        batches = self._batches(chunk.path)
        check_mapped(chunk.path, self._sizes[chunk.path])
        batch = batches[chunk.index]
        if batch.num_rows != chunk.rows:
            raise ValueError(f"the batch has {batch.num_rows:,} rows and promises {chunk.rows:,}")
        wanted = library("pyarrow", "an Arrow file").schema([self.schema.field(name) for name in columns])
        return in_schema(flattened(batch), wanted)

    def scan(self, chunk: Chunk, rows: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some rows of a batch of records."""
        return self.load(chunk, columns).take(rows)


class _CheckedBatches:
    """The batches of an open Arrow file as tables; each is checked whole when it is first looked at.

    Args:
        schema: Of the file.
        count: Number of batches.
        get: Gives a batch by its number.
    """

    def __init__(self, schema: Any, count: int, get: Callable[[int], Any]) -> None:
        self.schema = schema
        self._count, self._get = count, get
        self._checked: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        if not self._count:
            return self.schema.empty_table()
        batch = self._get(index)
        batch.validate(full=index not in self._checked)
        self._checked.add(index)
        return library("pyarrow", "an Arrow file").Table.from_batches([batch])


def _open_arrow(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    files = ArrowFiles(paths, options.columns is not None)
    return samples_of_tables(with_partitions(files, paths, several=True), options)


FILE_FORMATS = (
    FileFormat(
        "arrow",
        (".arrow", ".feather", ".ipc"),
        _open_arrow,
        frozenset({"columns", "length", "tokenizer", "text"}) | IMAGE_OPTIONS,
        recognizes=lambda begin: begin.startswith((_FILE, _STREAM, _FEATHER_1)),
        by_place=True,
    ),
)


# ---- rows and bytes in memory by the messages of an Arrow file, before anything in them is decompressed
#
# A message is a description in FlatBuffers, whose tables name the places of their fields, and a body. Buffers of a body
# that are compressed begin with their length in memory, 8 bytes, or −1 where one is stored as it is.
#
# Source: https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication", and the
# schemas that it names, Message.fbs and File.fbs; https://flatbuffers.dev/internals/ for tables and vectors

_MAGIC = b"ARROW1"
_DICTIONARIES, _BATCHES = 2, 3  # fields of a footer
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3  # fields of a message
_IS_DICTIONARY, _IS_BATCH = 2, 3  # values of its header type
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of a batch
_DICTIONARY_DATA = 1  # field of a batch of a dictionary
_BLOCK_BYTES, _BUFFER_BYTES = 24, 16  # of a place in a footer; of a place in a body
_REMEDY = "write it without compression"


class BatchForm(NamedTuple):
    """A batch of records, as its message describes it."""

    rows: int
    compressed: bool


class _FlatTable:
    """A table of FlatBuffers in a file."""

    def __init__(self, content: mmap.mmap, place: int) -> None:
        self._content, self._place = content, place
        self._fields = place - _number(content, "<i", place)
        self._count = (_number(content, "<H", self._fields) - 4) // 2

    @classmethod
    def root(cls, content: mmap.mmap, place: int) -> _FlatTable:
        return cls(content, place + _number(content, "<I", place))

    def place(self, field: int) -> int | None:
        """Where a field is; None if it has its default."""
        if field >= self._count:
            return None
        offset = _number(self._content, "<H", self._fields + 4 + 2 * field)
        return self._place + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else _number(self._content, form, place)

    def table(self, field: int) -> _FlatTable | None:
        place = self.place(field)
        return None if place is None else _FlatTable(self._content, place + _number(self._content, "<I", place))

    def vector(self, field: int) -> tuple[int, int]:
        """Where the entries of a vector begin, and their number."""
        place = self.place(field)
        if place is None:
            return 0, 0
        begin = place + _number(self._content, "<I", place)
        return begin + 4, _number(self._content, "<I", begin)


def _number(content: mmap.mmap, form: str, place: int) -> int:
    if not 0 <= place <= len(content) - struct.calcsize(form):
        raise struct.error(f"a message names the byte {place:,}, and the file has {len(content):,}")
    return struct.unpack_from(form, content, place)[0]


def batch_forms(path: Path, most: int) -> list[BatchForm]:
    """The batches of records of an Arrow file or stream, in order.

    Args:
        path: Of the file.
        most: Number of batches, one more is an error.

    Raises:
        DataError: the file is damaged, has more batches, or would become far larger by decompression.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return (_of_file if content[: len(_MAGIC)] == _MAGIC else _of_stream)(content, path, most)
        except (struct.error, OverflowError) as error:
            raise DataError(f"{path} is not an Arrow file, or was cut off: {error}") from error


def _of_file(content: mmap.mmap, path: Path, most: int) -> list[BatchForm]:
    end = len(content) - len(_MAGIC) - 4
    if end < 0 or content[-len(_MAGIC) :] != _MAGIC:
        raise DataError(f"{path} is not an Arrow file, or was cut off: it does not end with {_MAGIC.decode()}")
    footer = _FlatTable.root(content, end - _number(content, "<i", end))
    begin, count = footer.vector(_BATCHES)
    _check_count(path, count, most)
    forms: list[BatchForm] = []
    for kind, (first, number) in ((_DICTIONARIES, footer.vector(_DICTIONARIES)), (_BATCHES, (begin, count))):
        _check_count(path, number, most)
        total = _Expansion(path)
        for i in range(number):
            message, body, _ = _message(content, _number(content, "<q", first + i * _BLOCK_BYTES))
            if kind == _BATCHES:
                total = _Expansion(path)  # each is decompressed on its own
            forms += total.add(content, message, body)
    return forms


def _of_stream(content: mmap.mmap, path: Path, most: int) -> list[BatchForm]:
    forms: list[BatchForm] = []
    total, place = _Expansion(path), 0  # all are held at once
    while place + 8 <= len(content):
        message, body, end = _message(content, place)
        if message is None:
            break
        forms += total.add(content, message, body)
        _check_count(path, len(forms), most)
        place = end
    return forms


def _message(content: mmap.mmap, place: int) -> tuple[_FlatTable | None, int, int]:
    """The description of a message, where its body begins, and where it ends; None at the end of a stream."""
    size = _number(content, "<I", place)
    place += 4
    if size == 0xFFFFFFFF:  # versions before 0.15 have the size alone
        size = _number(content, "<I", place)
        place += 4
    if size == 0:
        return None, place, place
    message = _FlatTable.root(content, place)
    body = place + size
    stored = message.number(_BODY_BYTES, "<q")
    if stored < 0 or body + stored > len(content):
        raise struct.error(f"a message at byte {place:,} promises {stored:,} bytes and the file has {len(content):,}")
    return message, body, body + stored


class _Expansion:
    """How much larger some messages become."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored = self._promised = 0

    def add(self, content: mmap.mmap, message: _FlatTable | None, body: int) -> list[BatchForm]:
        """The batch of records that a message is, if it is one.

        Raises:
            DataError: the messages become far larger.
        """
        kind = 0 if message is None else message.number(_HEADER_TYPE, "<B")
        if message is None or kind not in (_IS_DICTIONARY, _IS_BATCH):
            return []
        batch = message.table(_HEADER)
        if kind == _IS_DICTIONARY and batch is not None:
            batch = batch.table(_DICTIONARY_DATA)
        if batch is None:
            raise struct.error("a message without a header")
        compressed = batch.place(_COMPRESSION) is not None
        if compressed:
            first, count = batch.vector(_BUFFERS)
            for i in range(count):
                offset, length = struct.unpack_from("<qq", content, first + i * _BUFFER_BYTES)
                self._stored += max(0, length)
                if length >= 8:
                    self._promised += max(length, _number(content, "<q", body + offset))
            check_expansion(f"{self._path}: a batch of rows", self._stored, self._promised, _REMEDY)
        return [BatchForm(batch.number(_ROWS, "<q"), compressed)] if kind == _IS_BATCH else []


def _check_count(path: Path, count: int, most: int) -> None:
    if count > most:
        raise DataError(f"{path} has {count:,} batches of rows; at most {most:,} are read: write larger ones")
