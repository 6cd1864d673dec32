"""Tables that are read from text, row after row: in memory while they are small, in a temporary Arrow file otherwise.

Text has no index, so it is parsed once, before the first sample. Up to `IN_MEMORY_BYTES` of a file are then held as an
Arrow table; a larger one is written, block by block, to a file in the folder for temporary files (`TMPDIR`), which is
mapped into memory and removed when the reader is. Memory is thereby bounded by the blocks.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.data.expansion import compression_of, opened
from descend.data.tables.arrow_columns import bounds_of, flattened
from descend.data.tables.bad_rows import looks_numeric
from descend.data.tables.table_files import TableFiles, in_chunks, in_schema, joined_schema
from descend.errors import DataError, DescendError, library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from descend.data.tables.bad_rows import Repaired
    from descend.data.tables.table_files import Chunk

__all__ = ["BLOCK_BYTES", "IN_MEMORY_BYTES", "TextTables", "decompressed"]

IN_MEMORY_BYTES = 2**28
BLOCK_BYTES = 2**24  # parsed at once; no row may be longer


def decompressed(path: Path) -> Any:
    """An Arrow stream of a file, decompressed if it is compressed."""
    arrow = library("pyarrow", f"{path}")
    plain = compression_of(path) is None
    return arrow.input_stream(str(path), compression=None) if plain else arrow.PythonFile(opened(path), "r")


class TextTables(TableFiles):
    """Files of text with the same columns; see `TableFiles`. Types are those that hold the values of all files.

    Args:
        paths: The files.
        parse: Makes Arrow tables or batches of one type of a file, in order.
        skip_bad: How many rows may be bad; they keep their numbers.
        repair: Makes a copy of a file without its bad rows, of which there may be so many.
        chosen: Whether the caller names the columns, so that files may lack others.
        may_lack: Whether a column that a file lacks is one of missing values.

    Attributes:
        bad: Why rows cannot be read, by their numbers over all files.

    Raises:
        DataError: a file cannot be parsed, or has other columns than the others.
    """

    bytes_are = "text that is not UTF-8: save it as that, or of a CSV table say its encoding=, such as 'latin-1'"

    def __init__(
        self,
        paths: Sequence[Path],
        parse: Callable[[Path], Iterable[Any]],
        skip_bad: int = 0,
        repair: Callable[[Path, int], Repaired] | None = None,
        chosen: bool = False,
        may_lack: bool = False,
    ) -> None:
        library("pyarrow", str(paths[0]))
        self._folder: Path | None = None
        tables: list[Any] = []
        for path in paths:
            before = sum(table.num_rows for table in tables)
            try:
                table = flattened(self._table(path, parse(path)))
            except DescendError as error:
                named = error.problems if str(path) in str(error) else [f"{path}: {text}" for text in error.problems]
                raise DataError(named) from error
            except Exception as error:  # pyarrow raises ArrowInvalid, OSError and others of its own
                lines = str(error).splitlines() or [type(error).__name__]
                if not skip_bad or repair is None:
                    raise DataError(f"{path} cannot be read: {lines[0]}") from error
                table = self._without_bad(path, parse, repair, skip_bad, before, lines[0])
            else:
                if repair is not None and skip_bad and _has_odd_cells(table, skip_bad):
                    with suppress(DataError):  # more rows than allowed: the column is what it seems to be
                        table = self._without_bad(path, parse, repair, skip_bad, before, "")
            tables.append(table)
        self.schema: Any = joined_schema(
            dict(zip(paths, [one.schema for one in tables], strict=True)), chosen, may_lack
        )
        self._tables = dict(zip(paths, tables, strict=True))
        self.chunks = [chunk for path, table in self._tables.items() for chunk in in_chunks(path, table.num_rows)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "line_of": None}  # used before the first sample

    def _without_bad(
        self,
        path: Path,
        parse: Callable[[Path], Iterable[Any]],
        repair: Callable[[Path, int], Repaired],
        skip_bad: int,
        before: int,
        reason: str,
    ) -> Any:
        """The table of a file without its bad rows, which are noted; `before` rows were in the files before it."""
        copy = repair(path, skip_bad - len(self.bad))
        if not copy.bad and reason:
            raise DataError(f"{path} cannot be read: {reason}")
        reasons = {before + row: f"the row cannot be parsed: {why}" for row, why in copy.bad.items()}
        self.bad = {**self.bad, **reasons}
        try:
            return flattened(self._table(path, parse(copy.path)))
        except Exception as error:  # as above
            lines = str(error).splitlines() or [type(error).__name__]
            raise DataError(f"{path} cannot be read: {lines[0]}") from error

    def _table(self, path: Path, parts: Iterable[Any]) -> Any:
        """All parts as one table, mapped from a temporary file if they are large."""
        arrow = library("pyarrow", str(path))
        iterator, held, size = iter(parts), [], 0
        for part in iterator:
            held.append(part)
            size += part.nbytes
            if size > IN_MEMORY_BYTES:
                return self._spilled(held, iterator)
        tables = [arrow.Table.from_batches([part]) if isinstance(part, arrow.RecordBatch) else part for part in held]
        return arrow.concat_tables(tables)

    def _spilled(self, held: Sequence[Any], rest: Iterator[Any]) -> Any:
        arrow = library("pyarrow", "a large table")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="descend-table-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        file = self._folder / f"{len(list(self._folder.iterdir()))}.arrow"
        with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_file(sink, held[0].schema) as writer:
            for part in held:
                writer.write(part)
            for part in rest:
                writer.write(part)
        return arrow.ipc.open_file(arrow.memory_map(str(file))).read_all()

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of some rows."""
        pa = library("pyarrow", "a table")
        table = self._tables[chunk.path].slice(chunk.first, chunk.rows)
        return in_schema(table, pa.schema([self.schema.field(name) for name in columns]))

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column."""
        tables = [one.column(column) for one in self._tables.values() if one.schema.get_field_index(column) >= 0]
        ends = [end for one in tables for end in bounds_of(one) if end is not None]
        return min(ends, default=None), max(ends, default=None)

    def without_nulls(self, column: str) -> bool:
        """Whether no value of a column is missing."""
        tables = self._tables.values()
        return all(one.schema.get_field_index(column) >= 0 and one.column(column).null_count == 0 for one in tables)


def _has_odd_cells(table: Any, allowed: int) -> bool:
    """Whether a column would be one of numbers, or of UTF-8, without a few of its cells."""
    arrow = library("pyarrow", "a table")
    if any(arrow.types.is_binary(column.type) for column in table.schema):
        return True
    texts = [name for name in table.schema.names if arrow.types.is_string(table.schema.field(name).type)]
    return any(looks_numeric(table.column(name).to_pylist(), allowed) for name in texts)
