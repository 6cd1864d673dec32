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

__all__ = ["WORTH_BYTES", "WORTH_READ_BYTES", "bytes_of", "return_freed"]

WORTH_BYTES = 2**20  # of a batch: smaller ones leave little
WORTH_READ_BYTES = 2**26  # of batches: fewer are read in less time than the next ones take to get new pages


def bytes_of(batch: Mapping[str, Any]) -> int:
    """Of the fields of a batch, arrays or tensors."""
    return sum(values.nbytes for values in batch.values())


def return_freed(batch_bytes: int, read_bytes: int) -> bool:
    """Give freed memory back, where batches are large and the C library can do it; whether that was done.

    Args:
        batch_bytes: Of a batch.
        read_bytes: Of all batches since it was done.
    """
    trim = _trim()
    if trim is None or batch_bytes < WORTH_BYTES or read_bytes < WORTH_READ_BYTES:
        return False
    trim(0)
    return True


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries of Linux have none
