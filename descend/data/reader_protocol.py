"""The reader protocol: samples with the same named fields, indexed by sample number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.data.description import Reader

__all__ = ["Array", "Field", "Format", "OpenReader", "SampleSource", "bytes_of_sample", "one_hot"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Field:
    """Shape and type of the array that a field holds for each sample.

    Args:
        shape: Of one sample.
        dtype: Of its numbers.
        pieces: Sizes of the arrays that were flattened and joined to it, in their order; empty where it is one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: tuple[int, ...] = field(default=(), compare=False)


def bytes_of_sample(fields: Mapping[str, Field]) -> int:
    """The bytes of one sample's arrays; of text, whose width is not known, those of an empty one."""
    return sum(math.prod(one.shape) * one.dtype.itemsize for one in fields.values())


class SampleSource(Protocol):
    """The samples of a data set as they are in its files, before subsets and transforms."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of each sample, by name."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers: for each field an array (n, *shape)."""
        ...


class OpenReader(Protocol):
    """A data set in a role, ready to be read. Anything of this form can feed a run.

    `len(reader)` and `reader.fields` are known without reading the samples.
    """

    @property
    def role(self) -> str:
        """One of "train", "validate", "test", "tournament"."""
        ...

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of each sample, by name."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Array]:
        """Read samples.

        Args:
            indices: (n,) numbers in [0, len(self)), in any order; n may be 0.
            epoch: From 0 up; random transforms draw other numbers in each epoch.

        Returns:
            For each field an array (n, *shape), whose content is a function of the arguments alone.

        Raises:
            DataError: a sample cannot be read.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A kind of reader.

    Args:
        open: Makes a source from a description and a seed, reading no more than is needed for its fields and its
            length; raises DataError where the data contradict the description.
        uses: The fields of `Reader` that it reads, besides those that are common to all.
    """

    open: Callable[[Reader, int], SampleSource]
    uses: frozenset[str]


def one_hot(labels: Array, num_labels: int) -> NDArray[np.float32]:
    """(n,) labels in [0, num_labels) as (n, num_labels) rows with a single 1."""
    rows = np.zeros((len(labels), num_labels), dtype=np.float32)
    rows[np.arange(len(labels)), labels] = 1
    return rows
