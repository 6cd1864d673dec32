"""Parquet files: a field for each column; row groups are read when a sample of theirs is.

Folders called NAME=VALUE are columns as well, see `descend.data.partitions`.

A row group is read whole, so the first samples of a file with small row groups (10,000 to 100,000 rows) come soonest in
random order. Beyond what fits into memory, columns that were decoded are kept in a temporary folder.

Source: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.data.arrow_columns import class_names, empty_table, flattened
from descend.data.arrow_source import Chunk
from descend.data.file_format import FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.partitions import with_partitions
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "MAX_GROUP_ROWS", "ParquetFiles"]

MAX_GROUP_ROWS = 2**27  # a few bytes can promise any number of equal values


class ParquetFiles:
    """Parquet files with the same columns; see `TableFiles`.

    Args:
        paths: The files.

    Raises:
        DataError: one is damaged, or has other columns than the first.
    """

    decodes = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self.chunks: list[Chunk] = []
        self._full: set[str] = set()
        self._footers: dict[Path, Any] = {}  # parsed once: there may be thousands of row groups
        schema = None
        for path in paths:
            file = self._open(path)
            self._footers[path] = file.metadata
            here = empty_table(file.schema_arrow).schema.remove_metadata()
            if schema is not None and not here.equals(schema):
                raise DataError(f"{path} has other columns than {paths[0]}; files of one reader must have the same")
            schema, first = here, 0
            self.class_names = class_names(file.schema_arrow)
            full = set(schema.names)
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                if group.num_rows > MAX_GROUP_ROWS:
                    raise DataError(
                        f"{path}: row group {index} promises {group.num_rows:,} rows; write the file with smaller row "
                        "groups, such as pyarrow.parquet.write_table(..., row_group_size=100_000)"
                    )
                self.chunks.append(Chunk(path, index, first, group.num_rows))
                first += group.num_rows
                full &= _without_nulls(group)
            self._full = full if len(paths) == 1 or path == paths[0] else self._full & full
        self.schema: Any = schema

    def _open(self, path: Path) -> Any:
        parquet = library("pyarrow.parquet", "a Parquet file")
        try:
            return parquet.ParquetFile(path, memory_map=True, metadata=self._footers.get(path))
        except Exception as error:  # pyarrow raises OSError, ValueError and others of its own
            raise DataError(f"{path} is not a Parquet file, or was cut off: {str(error).splitlines()[0]}") from error

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of a row group. A file is opened for each, since threads and processes cannot share one."""
        with self._open(chunk.path) as file:
            tops = set(file.schema_arrow.names)
            wanted = list(dict.fromkeys(top for name in columns for top in _prefixes(name) if top in tops))
            table = flattened(file.read_row_group(chunk.index, columns=wanted, use_threads=True))
        if table.num_rows != chunk.rows:
            raise ValueError(f"the row group has {table.num_rows:,} rows and promises {chunk.rows:,}")
        return table.select(list(columns))

    def without_nulls(self, column: str) -> bool:
        """Whether the statistics in the files say so."""
        return column in self._full


def _prefixes(name: str) -> list[str]:
    """A, A.B and A.B.C of "A.B.C": which of them is the column of the file that has this part."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _without_nulls(group: Any) -> set[str]:
    """The columns of a row group whose statistics say that no value is missing."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return {
        one.path_in_schema
        for one in columns
        if one.statistics is not None and one.statistics.has_null_count and one.statistics.null_count == 0
    }


def _open_parquet(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    return samples_of_tables(with_partitions(ParquetFiles(paths), paths), options)


FILE_FORMATS = (
    FileFormat(
        "parquet",
        (".parquet", ".pq"),
        _open_parquet,
        frozenset({"columns", "length", "image_size", "tokenizer"}),
        recognizes=lambda begin: begin.startswith(b"PAR1"),
    ),
)
