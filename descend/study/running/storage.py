"""Readable errors of the file system, for everything that is written in a study directory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from descend.errors import DescendError, StorageError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["storage_errors"]


@contextlib.contextmanager
def storage_errors(place: Path) -> Generator[None]:
    """Within this block an error of the file system becomes a `StorageError`."""
    try:
        yield
    except DescendError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write in {place}: {error.strerror or error}; is the disk full or read-only?"
        ) from error
