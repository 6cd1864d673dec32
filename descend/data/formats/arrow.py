"""Arrow files and streams, Feather files of version 2: a field for each column.

Files are mapped into memory: a batch of records is read, and decompressed where it is compressed, when a sample of its
rows is. Streams have no index, so their headers are read once at the beginning.

A batch is checked whole before anything walks it: Arrow's functions trust offsets, lengths and numbers of dictionary
entries, and those of a damaged file lead out of its memory.

Source: https://arrow.apache.org/docs/format/Columnar.html, "IPC File Format" and "IPC Streaming Format"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.data.file_format import IMAGE_OPTIONS, FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.paths import check_mapped, head
from descend.data.tables.arrow_columns import class_names, flattened
from descend.data.tables.arrow_messages import batch_forms
from descend.data.tables.arrow_source import MAX_COLUMNS, Chunk
from descend.data.tables.joined_schemas import in_schema, joined_schema
from descend.data.tables.partitions import with_partitions
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "ArrowFiles"]

MAX_BATCHES = 2**16  # of a file
_FILE, _STREAM, _FEATHER_1 = b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"


class ArrowFiles:
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

    def without_nulls(self, column: str) -> bool:
        """No: it is not known."""
        return False


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
