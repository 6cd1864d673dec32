"""Returns memory that batches have left behind to the system, at the end of an epoch.

The allocator of the C library keeps freed buffers of up to 32 MiB for the next ones, which is faster than new pages for
each batch. How much it keeps depends on which thread freed which buffer first, so a process that reads images grows and
shrinks by several batches, although nothing is held.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["WORTH_BYTES", "WORTH_READ_BYTES", "BatchMemory", "bytes_of"]

WORTH_BYTES = 2**20  # of a batch: smaller ones leave little
WORTH_READ_BYTES = 2**26  # of batches: fewer are read in less time than the next ones take to get new pages


def bytes_of(batch: Mapping[str, Any]) -> int:
    """Of the fields of a batch, arrays or tensors."""
    return sum(values.nbytes for values in batch.values())


class BatchMemory:
    """Counts the bytes of the batches that are read, and knows when it is worth while to give freed memory back."""

    def __init__(self) -> None:
        self._largest_bytes = 0  # of a batch
        self._read_bytes = 0  # since memory was given back

    def count(self, batch: Mapping[str, Any]) -> None:
        """Note that a batch was read."""
        size = 0
        for values in batch.values():  # a generator in `sum` takes twice as long, at each step
            size += 0 if getattr(values, "is_sparse", False) else values.nbytes
        self._largest_bytes = max(self._largest_bytes, size)
        self._read_bytes += size

    def give_back(self) -> None:
        """Give freed memory back, where batches are large, many were read, and the C library can do it."""
        trim = _trim()
        if trim is None or self._largest_bytes < WORTH_BYTES or self._read_bytes < WORTH_READ_BYTES:
            return
        trim(0)
        self._read_bytes = 0


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries of Linux have none
    except OSError:
        return None
