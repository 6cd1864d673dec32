"""Tables in files: their rows in chunks, one schema for several files, and columns that names of folders hold.

Such folders are `year=2024/kind=a/part-0.parquet`, as pandas, Spark and pyarrow write tables that are partitioned by
columns. Values are integers where those of all files are, else text; "__HIVE_DEFAULT_PARTITION__" is a missing value,
and characters that a path cannot have are written as %XX.

Source: https://arrow.apache.org/docs/python/generated/pyarrow.dataset.HivePartitioning.html
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from descend.arguments import shown
from descend.errors import DataError, library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


__all__ = ["Chunk", "PartitionedFiles", "TableFiles", "in_chunks", "in_schema", "joined_schema", "with_partitions"]

_ROWS_AT_ONCE = 65_536
_MISSING = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of a file.

    Args:
        path: Of the file.
        index: Number of the chunk in the file.
        first: Number of its first row in the file.
        rows: Number of rows.
    """

    path: Path
    index: int
    first: int
    rows: int

    def __hash__(self) -> int:  # without the path, which takes long
        return hash((self.index, self.first))


def in_chunks(path: Path, rows: int) -> list[Chunk]:
    """The chunks of a table that can be read from any row on."""
    starts = range(0, rows, _ROWS_AT_ONCE)
    return [Chunk(path, index, first, min(_ROWS_AT_ONCE, rows - first)) for index, first in enumerate(starts)]


class TableFiles:
    """Files with rows of the same columns, see `ArrowSource`. Must be picklable.

    Some have more methods: `take(samples, columns)`, a table of rows in any order, of those that have them at no more
    cost than in theirs, so that no chunks are loaded; and where chunks are decoded `scan(chunk, rows, columns)`, some
    rows of a chunk, in their order, which costs less than to load and keep it.

    Attributes:
        schema: The columns, without structures and dictionaries (see `flattened`).
        chunks: All rows, in order.
        decodes: Whether chunks are decoded when they are loaded.
        untyped: Whether columns have no types but what their values look like.
        bytes_are: What a column of bytes that are no images holds.
        class_names: What the integers of a column mean.
        left_out: Why columns of the files were left out, by their names.
        notes: Sentences about the files for the begin of a run.
        bad: Why rows cannot be read, by their numbers over all files.
        line_of: Gives the line of a row of a file, or None; None where rows have none.
    """

    schema: Any
    chunks: list[Chunk]
    decodes: bool = False
    untyped: bool = False
    bytes_are: str = "bytes that are no images"
    class_names: Mapping[str, Sequence[str]] = MappingProxyType({})
    left_out: Mapping[str, str] = MappingProxyType({})
    notes: Sequence[str] = ()
    bad: Mapping[int, str] = MappingProxyType({})
    line_of: Callable[[Path, int], int | None] | None = None

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """A table of some columns of a chunk, flattened."""
        raise NotImplementedError  # each format has its own

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column, where that is known without reading it."""
        return None, None

    def without_nulls(self, column: str) -> bool:
        """Whether it is known, without reading it, that no value of a column is missing."""
        return False


class PartitionedFiles(TableFiles):
    """Tables with a column more for each part NAME=VALUE of their paths; see `TableFiles`.

    Args:
        files: The tables.
        values: For each file its values by the names of columns; None where one is missing.
    """

    def __init__(self, files: TableFiles, values: Mapping[Path, Mapping[str, int | str | None]]) -> None:
        arrow = library("pyarrow", "a table")
        self._files, self._values = files, values
        stored = frozenset(files.schema.names)  # some programs write such a column into the files as well
        self._names = [name for name in next(iter(values.values())) if name not in stored]
        self._twice = [name for name in next(iter(values.values())) if name in stored]
        self.chunks, self.line_of, self.bytes_are = files.chunks, files.line_of, files.bytes_are
        self.decodes, self.untyped, self.bad = files.decodes, files.untyped, files.bad
        self.class_names, self.left_out, self.notes = files.class_names, files.left_out, files.notes
        own = files.schema
        for name in self._names:
            numbers = any(isinstance(of[name], int) for of in values.values())
            own = own.append(arrow.field(name, arrow.int64() if numbers else arrow.string()))
        self.schema: Any = own

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of a chunk."""
        # Without a column of the file there is none that says how many rows there are.
        stored = [name for name in columns if name not in self._names]
        return self._with_values(chunk, columns, self._files.load(chunk, stored) if stored else None, chunk.rows)

    def scan(self, chunk: Chunk, rows: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some rows of a chunk, of files that can give them."""
        stored = [name for name in columns if name not in self._names]
        table = cast("Any", self._files).scan(chunk, rows, stored) if stored else None
        return self._with_values(chunk, columns, table, len(rows))

    def _with_values(self, chunk: Chunk, columns: Sequence[str], table: Any, rows: int) -> Any:
        arrow = library("pyarrow", "a table")
        found = {} if table is None else {name: table.column(name) for name in table.column_names}
        for name in (name for name in self._twice if name in found):
            _check_alike(name, self._values[chunk.path][name], found[name])
        for name in columns:
            if name not in found:
                value = arrow.scalar(self._values[chunk.path][name], self.schema.field(name).type)
                found[name] = arrow.chunked_array([arrow.repeat(value, rows)])
        return arrow.table({name: found[name] for name in columns})

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column, where that is known without reading it."""
        return (None, None) if column in self._names else self._files.bounds(column)

    def without_nulls(self, column: str) -> bool:
        """Whether no value of a column is missing, as far as that is known without reading it."""
        if column in self._names:
            return all(of[column] is not None for of in self._values.values())
        return self._files.without_nulls(column)


def with_partitions(files: TableFiles, paths: Sequence[Path], several: bool = False) -> TableFiles:
    """The files with the columns that their paths name; the files themselves where the paths name none.

    Args:
        files: The tables.
        paths: Of the files.
        several: Whether a single file has no such columns: a Parquet table is usually a folder, and others a file.

    Raises:
        DataError: some paths name other columns than the first.
    """
    if several and len(paths) == 1:
        return files
    found = {path: _parts(path) for path in paths}
    first = next(iter(found.values()))
    for path, of in found.items():
        if of.keys() != first.keys():
            raise DataError(
                f"the folders of {path} name the columns {', '.join(of) or 'none'}, and those of {paths[0]} "
                f"{', '.join(first) or 'none'}; files of one reader must have the same"
            )
    values: dict[Path, dict[str, int | str | None]] = {path: {} for path in paths}
    for name in first:
        texts = {path: of[name] for path, of in found.items()}
        numbers = all(text is None or _is_integer(text) for text in texts.values())
        for path, text in texts.items():
            values[path][name] = text if text is None or not numbers else int(text)
    return PartitionedFiles(files, values) if first else files


def _check_alike(name: str, value: int | str | None, stored: Any) -> None:
    """Check that a column has the value that a folder names.

    Raises:
        ValueError: it has another one.
    """
    for other in library("pyarrow.compute", "a table").unique(stored).to_pylist():
        if not _are_alike(value, other):
            raise ValueError(
                f"'{name}' must be {shown(value)}, as the folder is named, got {shown(other)} in the file: "
                "correct one of them, or leave it out by columns="
            )


def _are_alike(value: int | str | None, other: Any) -> bool:
    if value is None or other is None or isinstance(value, int) or isinstance(other, str):
        if isinstance(value, int) and isinstance(other, str):
            return _is_integer(other) and int(other) == value
        return other == value
    return str(other).casefold() == value.casefold() or (hasattr(other, "year") and str(other).startswith(value))


def _parts(path: Path) -> dict[str, str | None]:
    pairs = [part.split("=", 1) for part in path.parent.parts if "=" in part[1:]]
    return {unquote(name): None if value == _MISSING else unquote(value) for name, value in pairs}


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 19


# ---- one schema for tables in several files: columns by name in any order, of types that hold the values of all
# files


def joined_schema(schemas: Mapping[Path, Any], chosen: bool = False, may_lack: bool = False) -> Any:
    """The columns of some files, in the order of the first one.

    Args:
        schemas: That of each file, flattened.
        chosen: Whether the caller names the columns, so that files may lack others.
        may_lack: Whether a column that a file lacks is one of missing values.

    Raises:
        DataError: a file lacks a column, or a column is of types that cannot be joined.
    """
    pa = library("pyarrow", "a table")
    first, *rest = schemas
    names = list(dict.fromkeys(name for one in schemas.values() for name in one.names))
    for path in () if may_lack else rest:
        odd = set(schemas[path].names) ^ set(schemas[first].names)
        if odd and not chosen:
            raise DataError(
                f"{path} has other columns than {first} ({', '.join(sorted(odd)[:5])}); files of one reader must have "
                "the same, or name those that all have with columns=[...]"
            )
        names = [name for name in names if name not in odd]
    if not rest:
        return schemas[first]
    kept = [pa.schema([one.field(name) for name in names if name in one.names]) for one in schemas.values()]
    try:
        joined = pa.unify_schemas(kept, promote_options="permissive")
    except pa.ArrowException as error:  # ArrowInvalid, or ArrowTypeError, which is none
        raise DataError(f"the columns of {first} and the files after it differ in type: {error}") from error
    return pa.schema([joined.field(name) for name in names])


def in_schema(table: Any, schema: Any) -> Any:
    """A table with the columns of a schema, which are missing values where it lacks them."""
    pa = library("pyarrow", "a table")
    there = frozenset(table.schema.names)
    found = [
        table.column(one.name).cast(one.type)
        if one.name in there
        else pa.chunked_array([pa.nulls(table.num_rows, one.type)])
        for one in schema
    ]
    return pa.Table.from_arrays(found, schema=schema)
