"""The reader protocol: samples with the same named fields by number, of sources, over others, in several files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from descend.data.description import Reader
    from descend.data.file_format import FileSource
    from descend.data.images.pictures import ImageKind

__all__ = [
    "Array",
    "Field",
    "Format",
    "OpenReader",
    "Pieces",
    "SampleSource",
    "WrappedSource",
    "bytes_of_sample",
    "one_hot",
]

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


# ---- the base of sources that have the samples of another one: some of them, or changed


class WrappedSource:
    """Has the fields of a source, and what is known of them; see `FileSource`.

    Args:
        source: Whose samples they are.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self.fields: Mapping[str, Field] = source.fields
        self.classes: Mapping[str, Sequence[str]] = getattr(source, "classes", {})
        self.self_numbered: frozenset[str] = getattr(source, "self_numbered", frozenset())
        self.left_out: Mapping[str, str] = getattr(source, "left_out", {})
        self.pixels: frozenset[str] = getattr(source, "pixels", frozenset())
        self.kinds: Mapping[str, ImageKind] = getattr(source, "kinds", {})
        self.notes: tuple[str, ...] = getattr(source, "notes", ())
        self.largest: Mapping[str, int] = getattr(source, "largest", {})
        self.vocabulary: int | None = getattr(source, "vocabulary", None)

    def _over(self, source: FileSource) -> Self:
        """The same over another source with these fields."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _source=source)
        return other

    def __len__(self) -> int:
        return len(self._source)

    def at_epoch(self, epoch: int) -> Self:
        """The samples of an epoch, where they are not the same in all."""
        own = getattr(self._source, "at_epoch", None)
        return self if own is None else self._over(own(epoch))

    def in_run(self, seed: int, role: str) -> Self:
        """The samples with the random numbers of a run."""
        own = getattr(self._source, "in_run", None)
        return self if own is None else self._over(own(seed, role))

    def shown(self, values: Array) -> str:
        """The text of the tokens in a field."""
        return cast("Any", self._source).shown(values)

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        own = getattr(self._source, "column", None)
        return None if own is None else own(name)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return self._source.read(samples)

    def place(self, sample: int) -> str:
        """Where a sample comes from."""
        return self._source.place(sample)


# ---- several files of the same fields as one sequence of samples, read file by file

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Pieces(Generic[Piece]):
    """Pieces of a data set, such as files or row groups, each with a number of consecutive samples.

    Args:
        pieces: In order.
        counts: Samples of each.
    """

    pieces: Sequence[Piece]
    counts: Sequence[int]

    @property
    def ends(self) -> NDArray[np.int64]:
        """The number of samples up to the end of each piece."""
        return np.cumsum(np.asarray(self.counts, dtype=np.int64))

    def __len__(self) -> int:
        return int(sum(self.counts))

    def piece_of(self, sample: int) -> tuple[Piece, int]:
        """The piece of a sample, and the number of the sample within it."""
        ends = self.ends
        at = int(np.searchsorted(ends, sample, side="right"))
        return self.pieces[at], sample - int(ends[at] - self.counts[at])

    def split(self, samples: NDArray[np.int64]) -> Iterator[tuple[Piece, NDArray[np.int64], NDArray[np.int64]]]:
        """For each piece that has some of the samples: it, their numbers within it, and their places in `samples`."""
        if len(self.pieces) == 1:
            yield self.pieces[0], samples, np.arange(len(samples), dtype=np.int64)
            return
        ends = self.ends
        of = np.searchsorted(ends, samples, side="right")
        order = np.argsort(of, kind="stable")
        cuts = np.flatnonzero(np.diff(of[order])) + 1
        for places in np.split(order, cuts):
            at = int(of[places[0]])
            yield self.pieces[at], samples[places] - (ends[at] - self.counts[at]), places
