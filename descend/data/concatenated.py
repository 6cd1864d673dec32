"""Several files of the same fields as one sequence of samples, read file by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Pieces"]

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
