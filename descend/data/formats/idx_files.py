"""IDX files as `descend.data.read` takes them: an array as the field "samples", or MNIST's pair of files.

Two files of equally many samples, one of images and one of integers, are the fields "image" and "label".
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from descend.data.file_format import FileFormat
from descend.data.formats.idx import TYPES, open_idx
from descend.data.paths import check_mapped
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Pieces
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "IdxArrays", "LabelledIdx"]

_MAX_CONTENT_BYTES = 2**46  # beyond it, four bytes of something else look like the beginning of an IDX file


class IdxArrays:
    """Samples of IDX files one after another; see `FileSource`.

    Args:
        field: Its name.
        paths: The files; all must have samples of the same shape and type.

    Raises:
        DataError: a file is damaged, or of another shape or type than the first.
    """

    def __init__(self, field: str, paths: Sequence[Path]) -> None:
        files = [open_idx(path) for path in paths]
        form = (files[0].shape[1:], files[0].dtype)
        if odd := [file for file in files if (file.shape[1:], file.dtype) != form]:
            raise DataError(
                f"{odd[0].path} has samples of {odd[0].shape[1:]} {native(np.empty(0, odd[0].dtype)).dtype} and "
                f"{paths[0]} of {form[0]} {native(np.empty(0, form[1])).dtype}; files of one reader must have the "
                "same, unless they are an array of images and one of labels"
            )
        self._field = field
        self._files = Pieces(files, [file.shape[0] for file in files])
        self.fields: Mapping[str, Field] = {field: Field(form[0], native(np.empty(0, form[1])).dtype)}
        self.pixels = frozenset({field} if field == "image" else ())

    def __len__(self) -> int:
        return len(self._files)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Rows of the arrays."""
        form = self.fields[self._field]
        found = np.empty((len(samples), *form.shape), form.dtype)
        for file, rows, places in self._files.split(samples):
            elements = file.elements
            if isinstance(elements, np.memmap):
                check_mapped(file.path, file.header_bytes + elements.nbytes)
            found[places] = elements[rows]
        return {self._field: found}

    def place(self, sample: int) -> str:
        """The file, and the index in it."""
        file, row = self._files.piece_of(sample)
        return f"{file.path}, index {row}"


class LabelledIdx:
    """An array of images and one of their labels; see `FileSource`."""

    def __init__(self, images: Path, labels: Path) -> None:
        self._images, self._labels = IdxArrays("image", [images]), IdxArrays("label", [labels])
        if len(self._images) != len(self._labels):
            raise DataError(
                f"{images} has {len(self._images):,} images and {labels} {len(self._labels):,} labels; each image must "
                "have one"
            )
        shape, dtype = self._images.fields["image"].shape, self._images.fields["image"].dtype
        self._shape = (1, *shape) if len(shape) == 2 else shape
        self.fields: Mapping[str, Field] = {
            "image": Field(self._shape, dtype),
            "label": Field((), np.dtype(np.int64)),
        }
        self.pixels = frozenset({"image"})

    def __len__(self) -> int:
        return len(self._images)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Images (channels, height, width) and labels."""
        images = self._images.read(samples)["image"].reshape(len(samples), *self._shape)
        return {"image": images, "label": self._labels.read(samples)["label"].astype(np.int64)}

    def place(self, sample: int) -> str:
        """The file of the images, and the index in it."""
        return self._images.place(sample)


def _open(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    """Two files with as many samples, one of images and one of numbers, are images and labels."""
    if len(paths) == 2:
        by_dimensions = sorted((open_idx(path) for path in paths), key=lambda file: len(file.shape))
        labels, images = by_dimensions
        if len(labels.shape) == 1 and labels.dtype.kind in "iu" and len(images.shape) >= 3:
            return LabelledIdx(images.path, labels.path)
    return IdxArrays("samples", paths)


def _is_idx(begin: bytes) -> bool:
    if len(begin) < 8 or begin[:2] != b"\0\0" or begin[2] not in TYPES or begin[3] == 0:
        return False
    sizes = begin[4 : 4 + 4 * begin[3]]
    whole = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
    return math.prod(whole) < _MAX_CONTENT_BYTES


_ENDINGS = (".idx", ".idx1-ubyte", ".idx2-ubyte", ".idx3-ubyte", ".idx4-ubyte")
FILE_FORMATS = (FileFormat("idx", _ENDINGS, _open, recognizes=_is_idx),)
