"""Tables in memory: data frames of pandas and polars, tables of pyarrow.

A table is known by its columns and by Arrow's stream interface (`__arrow_c_stream__`), so no library of frames is
imported. The row numbers that pandas keeps beside the columns of a frame are left out.

Source: https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.arguments import shown
from descend.data.file_format import IMAGE_OPTIONS, check_used, library
from descend.data.tables.arrow_columns import bounds_of, flattened
from descend.data.tables.arrow_source import ROW_NUMBERS, ArrowSource, Chunk
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions

__all__ = ["table_source"]

_USES = frozenset({"columns", "length", "text"}) | IMAGE_OPTIONS
_ROWS_AT_ONCE = 65_536


class _TableRows:
    """The rows of a table; see `TableFiles`."""

    def __init__(self, data: Any) -> None:
        title = type(data).__name__
        pa = library("pyarrow", f"a {title}")
        try:
            table = pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"the {title} has no form as an Arrow table: {error}") from error
        try:
            table.validate(full=True)  # one that was read from a damaged file would lead out of its memory
        except pa.ArrowException as error:
            raise DataError(f"the {title} is damaged: {error}") from error
        kept = [name for name in table.column_names if not ROW_NUMBERS.fullmatch(name)]
        if len(set(kept)) < len(kept):
            twice = next(name for name in kept if kept.count(name) > 1)
            raise DataError(f"the {title} has two columns {shown(twice)}; give them different names")
        self._table = flattened(table.select(kept))
        self.schema: Any = self._table.schema.remove_metadata()
        name, count = Path(f"{title} of {', '.join(kept)}"[:80]), len(table)
        starts = range(0, count, _ROWS_AT_ONCE)
        self.chunks = [Chunk(name, i, first, min(_ROWS_AT_ONCE, count - first)) for i, first in enumerate(starts)]

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of some rows."""
        return self._table.slice(chunk.first, chunk.rows).select(list(columns))

    def take(self, samples: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some columns of the rows with these numbers."""
        return self._table.select(list(columns)).take(samples)

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column."""
        return bounds_of(self._table.column(column))

    def without_nulls(self, column: str) -> bool:
        """Whether no row lacks a value of the column."""
        return self._table.column(column).null_count == 0


def table_source(data: Any, options: ReadOptions) -> ArrowSource:
    """The samples of a table, a row each.

    Raises:
        ConfigurationError: an option is set that has no meaning for it.
        MissingExtra: pyarrow is not installed.
        DataError: there are no rows, or no column can be read.
    """
    title = type(data).__name__
    check_used(f"a {title}", _USES, options)
    rows = _TableRows(data)
    if not rows.chunks:
        raise DataError(f"the {title} has 0 samples, and at least 1 is needed")
    return ArrowSource(rows, options)
