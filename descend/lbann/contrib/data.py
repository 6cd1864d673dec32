"""Data sets for programs: the names of `lbann.util.data`, and a reader of arrays that a script holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import ConfigurationError
from descend.lbann.util.data import (
    DataReader,
    Dataset,
    DistConvDataset,
    Sample,
    SampleDims,
    construct_python_dataset_reader,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "ArrayDataset",
    "DataReader",
    "Dataset",
    "DistConvDataset",
    "Sample",
    "SampleDims",
    "construct_python_dataset_reader",
]


class ArrayDataset(Dataset):
    """Samples that are rows of arrays; ours, to spare a script a class of its own.

    Args:
        sample: (samples, *dimensions).
        label: (samples, *dimensions), or None.
        response: (samples, *dimensions), or None.

    Raises:
        ConfigurationError: an array has no dimension, or they differ in their numbers of samples.
    """

    def __init__(self, sample: ArrayLike, label: ArrayLike | None = None, response: ArrayLike | None = None) -> None:
        given = {"sample": sample, "label": label, "response": response}
        self._arrays = {name: np.asarray(array) for name, array in given.items() if array is not None}
        counts = {name: len(array) if array.ndim else None for name, array in self._arrays.items()}
        if len(set(counts.values())) != 1 or None in counts.values():
            said = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise ConfigurationError(f"ArrayDataset: arrays must have as many samples each, and {said}")

    def __len__(self) -> int:
        return len(self._arrays["sample"])

    def __getitem__(self, index: int) -> Sample:
        """One row of each array."""
        rows: dict[str, Any] = {name: array[index] for name, array in self._arrays.items()}
        return Sample(**rows)

    def get_sample_dims(self) -> SampleDims:
        """The dimensions of a row of each array; a number has one."""
        dims: dict[str, Any] = {name: array.shape[1:] or (1,) for name, array in self._arrays.items()}
        return SampleDims(**dims)
