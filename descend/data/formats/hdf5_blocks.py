"""Rows of HDF5 data sets in any order, without decoding a chunk for each of them.

contiguous    mapped into memory: the numbers are in the file as they are
in chunks     whole chunks are decoded and kept, at most `HELD_BYTES` in memory and the others in the folder for
              temporary files, so that in random order a chunk is decoded once

A chunk that is decoded for one of its rows costs as much as all of them, and in random order nearly every batch has a
row of nearly every chunk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.paths import check_mapped
from descend.data.tables.spilled_columns import SpilledColumns

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = ["HELD_BYTES", "StoredRows"]

HELD_BYTES = 2**30


class StoredRows:
    """Reads rows of the data sets of one source; a copy in another process begins empty."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Hashable, Array] = OrderedDict()
        self._held = 0
        self._spilled = SpilledColumns()
        self._mapped: dict[Hashable, np.memmap[Any, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredRows, ()

    def read(self, path: Path, stored: Any, rows: NDArray[np.int64]) -> Array:
        """Rows of a data set of numbers.

        Args:
            path: Of its file.
            stored: The data set, open.
            rows: (n,) in increasing order, none twice.
        """
        if 0 in stored.shape:  # of which the library selects no rows
            return np.empty((len(rows), *stored.shape[1:]), stored.dtype)
        if stored.chunks is None:
            return self._contiguous(path, stored, rows)
        size = stored.chunks[0]
        found = np.empty((len(rows), *stored.shape[1:]), stored.dtype)
        blocks = rows // size
        for at in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1):
            if len(at):
                number = int(blocks[at[0]])
                found[at] = self._block((path, stored.name, number), stored, number * size)[rows[at] - number * size]
        return found

    def _contiguous(self, path: Path, stored: Any, rows: NDArray[np.int64]) -> Array:
        key = (path, stored.name)
        if key not in self._mapped:
            offset = stored.id.get_offset()
            if offset is None:  # nothing was written, so there is only the fill value
                return np.asarray(stored[rows])
            self._mapped[key] = np.memmap(path, stored.dtype, "r", offset, stored.shape)
        mapped = self._mapped[key]
        check_mapped(path, mapped.offset + mapped.nbytes)
        return mapped[rows]

    def _block(self, key: Hashable, stored: Any, begin: int) -> Array:
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        if key in self._spilled:
            return self._spilled.get(key)
        block = np.asarray(stored[begin : begin + stored.chunks[0]])
        self._blocks[key] = block
        self._held += block.nbytes
        while self._held > HELD_BYTES and len(self._blocks) > 1:
            oldest, values = self._blocks.popitem(last=False)
            self._held -= values.nbytes
            self._spilled.put(oldest, values)
        return block
