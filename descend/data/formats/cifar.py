"""The binary files of CIFAR-10 and CIFAR-100: records of labels and an image of 3 x 32 x 32 bytes.

CIFAR-10    label, image                          "image", "label"
CIFAR-100   coarse label, fine label, image       "image", "coarse_label", "label"

The two are distinguished by the size of the file; where it fits both, by labels above 9. Files are mapped into memory.

Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version"
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from descend.data.file_format import FileFormat
from descend.data.paths import check_mapped
from descend.data.reader_protocol import Field, Pieces
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "CIFARFiles"]

_IMAGE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_LABELS = {1: ("label",), 2: ("coarse_label", "label")}
_CLASSES = {1: (10,), 2: (20, 100)}


class CIFARFiles:
    """Images and labels of binary files.

    Args:
        paths: The files.

    Raises:
        DataError: a size is not a multiple of a record's, a label is out of range, or the files differ in kind.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        kinds = {path: _labels_in(path) for path in paths}
        self._labels = kinds[paths[0]]
        if odd := [path for path, labels in kinds.items() if labels != self._labels]:
            raise DataError(f"{odd[0]} is of another kind of CIFAR than {paths[0]}")
        self._pieces = Pieces(paths, [path.stat().st_size // (self._labels + _IMAGE_BYTES) for path in paths])
        self.pixels = frozenset({"image"})
        label = Field((), np.dtype(np.int64))
        self.fields: Mapping[str, Field] = {
            "image": Field(_IMAGE, np.dtype(np.uint8)),
            **dict.fromkeys(_LABELS[self._labels], label),
        }

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The records with these numbers."""
        records = np.empty((len(samples), self._labels + _IMAGE_BYTES), np.uint8)
        for path, rows, at in self._pieces.split(samples):
            mapped = _records(path, self._labels)
            check_mapped(path, mapped.nbytes)
            records[at] = mapped[rows]
        labels = {name: records[:, i].astype(np.int64) for i, name in enumerate(_LABELS[self._labels])}
        return {"image": records[:, self._labels :].reshape(-1, *_IMAGE), **labels}

    def place(self, sample: int) -> str:
        """The file, and the record in it."""
        path, row = self._pieces.piece_of(sample)
        return f"{path}, record {row}"


@cache
def _records(path: Path, labels: int) -> NDArray[np.uint8]:
    return np.memmap(path, np.uint8, mode="r").reshape(-1, labels + _IMAGE_BYTES)


def _labels_in(path: Path) -> int:
    """How many labels a record has, 1 or 2."""
    size = path.stat().st_size
    fitting = [labels for labels in _LABELS if size and size % (labels + _IMAGE_BYTES) == 0]
    if not fitting:
        raise DataError(
            f"{path} has {size:,} bytes, which is not a multiple of {1 + _IMAGE_BYTES} (CIFAR-10) or "
            f"{2 + _IMAGE_BYTES} (CIFAR-100): it was cut off or is something else"
        )
    for labels in fitting:
        found = np.asarray(_records(path, labels)[:, :labels]).max(axis=0)
        if (found < _CLASSES[labels]).all():
            return labels
    raise DataError(f"{path} has labels that are too large for CIFAR-10 (10 classes) and CIFAR-100 (20 and 100)")


def _open_cifar(paths: Sequence[Path], options: ReadOptions) -> CIFARFiles:
    return CIFARFiles(paths)


FILE_FORMATS = (FileFormat("cifar", (".bin",), _open_cifar, by_place=True),)
