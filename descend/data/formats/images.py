"""The data sets that a description has by name: labelled images in IDX files ("mnist", "digits"), and random numbers.

samples   the elements, as floats where they are no bytes: (1, height, width) from an array of three dimensions,
          (channels, height, width) from one of four, (1,) from one of one
labels    one-hot, (num_labels,)
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.formats.idx import IdxFile, open_idx
from descend.data.order import Draws, key_of
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Format, one_hot
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["DIGITS", "MNIST", "SYNTHETIC", "LabelledImages"]

NUM_LABELS = 10  # of MNIST and all data sets in its format
DEFAULT_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
DIGITS_FOLDER = Path(__file__).parents[2] / "zoo" / "digits"
# Sample k of each class (k = 0, 1, ... in the order of the file) belongs to the split at k mod 6 of this list.
DIGITS_PARTS = ("train", "train", "validate", "train", "train", "test")


class LabelledImages:
    """Images and their labels, or a subset of them.

    The labels are read at once, since they are few bytes and a wrong one must be found before the run begins; the
    images when the first of them is read.

    Args:
        images: Samples along the first dimension.
        labels: One integer for each image.
        num_labels: Labels go from 0 to num_labels − 1.
        part: (n,) sample numbers of the subset in the file; None for all.

    Raises:
        DataError: the counts differ or a label is out of range.
    """

    def __init__(
        self, images: IdxFile, labels: IdxFile, num_labels: int, part: NDArray[np.int64] | None = None
    ) -> None:
        if images.shape[0] != labels.shape[0]:
            raise DataError(
                f"{images.path} has {images.shape[0]:,} images and {labels.path} has {labels.shape[0]:,} labels; "
                "both need the same number: take the two files of one set"
            )
        self._file = images
        self._part = part
        self._labels = _checked_labels(labels, num_labels)
        shape = images.shape[1:]
        dtype = np.dtype(np.uint8 if images.dtype == np.uint8 else np.float32)
        self.fields: Mapping[str, Field] = {
            "samples": Field((1, *shape) if len(shape) in (0, 2) else shape, dtype),
            "labels": Field((num_labels,), np.dtype(np.float32)),
        }

    def __len__(self) -> int:
        return len(self._labels if self._part is None else self._part)

    @cached_property
    def _images(self) -> Array:
        return self._file.array()

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers, of the subset if there is one."""
        at = samples if self._part is None else self._part[samples]
        field = self.fields["samples"]
        images = self._images[at].astype(field.dtype, copy=False).reshape(len(at), *field.shape)
        return {"samples": images, "labels": one_hot(self._labels[at], self.fields["labels"].shape[0])}


def _checked_labels(file: IdxFile, num_labels: int) -> NDArray[np.integer[Any]]:
    if len(file.shape) != 1 or file.dtype.kind not in "iu":
        raise DataError(
            f"{file.path} must have one integer label for each sample, got {len(file.shape)} dimensions of {file.dtype}"
        )
    labels = native(file.array())  # of the file's type: as int64 a file of bytes would take eight times its size
    wrong = np.flatnonzero((labels < 0) | (labels >= num_labels))
    if wrong.size:
        raise DataError(
            f"{file.path}: sample {wrong[0]} has label {labels[wrong[0]]}, and with num_labels={num_labels} labels go "
            f"from 0 to {num_labels - 1} ({wrong.size:,} of {len(labels):,} labels are out of range); correct the file "
            "or set num_labels of the reader"
        )
    return labels


def _find(reader: Reader, name: str) -> IdxFile:
    folder = Path(reader.data_filedir or ".")
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return open_idx(candidate)
    state = "which does not exist" if not folder.is_dir() else "which has neither"
    raise DataError(
        f"looked for {name} and {name}.gz in {folder.absolute()}, {state}; set data_filedir to their folder"
    )


def _open_mnist(reader: Reader, seed: int) -> LabelledImages:
    images, labels = DEFAULT_FILES.get(reader.role, ("", ""))
    images, labels = reader.data_filename or images, reader.label_filename or labels
    if not (images and labels):
        raise DataError(
            f"data_filename and label_filename have no default in the role '{reader.role}': set both, or use "
            f"{reader.role}_fraction of the train reader"
        )
    return LabelledImages(_find(reader, images), _find(reader, labels), reader.num_labels or NUM_LABELS)


def _open_digits(reader: Reader, seed: int) -> LabelledImages:
    images, labels = (open_idx(DIGITS_FOLDER / f"{what}.gz") for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if reader.role not in DIGITS_PARTS:
        raise DataError(f"the digits have the roles train, validate and test, got '{reader.role}'")
    return LabelledImages(images, labels, NUM_LABELS, _digits_part(labels.array(), reader.role))


def _digits_part(labels: Array, role: str) -> NDArray[np.int64]:
    parts = np.array(DIGITS_PARTS)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in range(NUM_LABELS):
        of_class = np.flatnonzero(labels == label)
        chosen[of_class] = parts[np.arange(len(of_class)) % len(parts)] == role
    return np.flatnonzero(chosen)


MNIST = Format(_open_mnist, frozenset({"data_filedir", "data_filename", "label_filename", "num_labels"}))
DIGITS = Format(_open_digits, frozenset())


# ---- samples of random numbers, for speed measurements and for trying a network without data
#
#     samples     N(0, 1), of the shape synth_dimensions ("1 28 28")
#     labels      one-hot, each of num_labels as likely, when num_labels is set
#     responses   N(0, 1), of the shape synth_response_dimensions, when that is set
#
# Sample i is a function of the seed, the role and i, so it is the same in each epoch.


class SyntheticSamples:
    """The samples of the reader "synthetic"."""

    def __init__(self, reader: Reader, seed: int) -> None:
        self._keys = {what: key_of("synthetic", seed, reader.role, what) for what in ("samples", "labels", "responses")}
        self._num_samples = reader.num_samples
        shapes = {"samples": _shape(reader, "synth_dimensions")}
        if reader.num_labels:
            shapes["labels"] = (reader.num_labels,)
        if reader.synth_response_dimensions:
            shapes["responses"] = _shape(reader, "synth_response_dimensions")
        self.fields: Mapping[str, Field] = {name: Field(shape, np.dtype(np.float32)) for name, shape in shapes.items()}

    def __len__(self) -> int:
        return self._num_samples

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Make the samples with these numbers."""
        return {name: self._field(name, samples) for name in self.fields}

    def _field(self, name: str, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        shape = self.fields[name].shape
        draws = Draws(self._keys[name], samples)
        if name == "labels":
            return one_hot(draws.integers(shape[0]), shape[0])
        return draws.normal(math.prod(shape)).astype(np.float32).reshape(len(samples), *shape)


def _shape(reader: Reader, name: str) -> tuple[int, ...]:
    text: str = getattr(reader, name)
    sizes = text.split()
    if not sizes or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigurationError(f"{name} must be sizes >= 1 separated by spaces, such as \"1 28 28\", got '{text}'")
    return tuple(int(size) for size in sizes)


SYNTHETIC = Format(
    SyntheticSamples, frozenset({"num_samples", "num_labels", "synth_dimensions", "synth_response_dimensions"})
)
