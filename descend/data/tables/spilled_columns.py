"""Decoded columns on disk, in a temporary folder, mapped into memory when they are read again.

A column that no longer fits into memory would be decoded again for every batch that has a sample of it; in random order
that is most of them. Here it is written once: arrays of NumPy as they are, those of Arrow in its file format. What is
mapped belongs to the page cache of the system, which gives it up when memory is short.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import library

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["SpilledColumns"]

FREE_BYTES = 2**30  # that stay free on the disk
_MAPPED = 4096  # columns that are mapped at once; a process can have 65,530 mappings


class SpilledColumns:
    """Columns by any key, in files of a temporary folder that is removed with this object.

    A copy in another process begins empty.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._files: dict[Hashable, Path] = {}
        self._written = 0
        self._mapped: OrderedDict[Hashable, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": None, "_files": {}, "_written": 0, "_mapped": OrderedDict()}

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a column was written and can still be read; temporary files may be cleaned away under a process."""
        if key in self._files and key not in self._mapped:
            try:
                self._map(key)
            except (OSError, ValueError):
                del self._files[key]
        return key in self._files

    def put(self, key: Hashable, column: Any) -> None:
        """Write a column, unless it is there or the disk is full; then it has to be decoded again.

        Args:
            key: Of the column.
            column: A NumPy array, or an Arrow array, chunked or not.
        """
        if key in self._files:
            return
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="descend-columns-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            if shutil.disk_usage(self._folder).free < column.nbytes + FREE_BYTES:
                return
            file = self._folder / str(self._written)
            self._written += 1
            if isinstance(column, np.ndarray):
                np.save(file.with_suffix(".npy"), column, allow_pickle=False)
                self._files[key] = file.with_suffix(".npy")
                return
            arrow = library("pyarrow", "a table")
            table = arrow.table({"column": column})
            with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            self._files[key] = file
        except OSError:  # the disk is full after all, or cannot be written
            return

    def get(self, key: Hashable) -> Any:
        """A column that is there, mapped into memory."""
        if key not in self._mapped:
            self._map(key)
        self._mapped.move_to_end(key)
        return self._mapped[key]

    def _map(self, key: Hashable) -> None:
        file = self._files[key]
        if file.suffix == ".npy":
            self._mapped[key] = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            arrow = library("pyarrow", "a table")
            self._mapped[key] = arrow.ipc.open_file(arrow.memory_map(str(file))).read_all().column(0)
        while len(self._mapped) > _MAPPED:
            self._mapped.popitem(last=False)
