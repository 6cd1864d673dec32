"""Splits an epoch into batches, and each batch among the ranks.

Step s of an epoch has the positions s·B to (s + 1)·B − 1, the last step the rest of the n samples. Of a batch of m
units rank r of R has those from ⌊m r / R⌋ up to ⌊m (r + 1) / R⌋, so ranks differ by at most one unit and every sample
is used once an epoch, for any number of ranks. A unit is one sample, or the samples that share statistics of batch
norm. All ranks have the same number of steps; a rank without samples in a step gets arrays of length 0.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from descend.data.loading.read_threads import BatchMemory, prefetched
from descend.data.order import order
from descend.data.samplers import checked_ids
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from descend.data.reader_protocol import Array
    from descend.data.samplers import Sampler

    Rows = tuple[Mapping[str, Array | Tensor], NDArray[np.int64]]  # fields, and the numbers of the samples

__all__ = ["Batch", "Batches", "Feed", "RankSlice", "Samples", "share"]

ORDERED_AT_ONCE = 8192  # positions; the order costs about 0.2 ms a call, too much for each step of a small network


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Batch:
    """A rank's share of the samples of one step.

    Args:
        fields: By name, arrays (n, *shape) with n the size of this rank's share, possibly 0; tensors where the data
            set is made of tensors.
        ids: (n,) numbers of the samples in the reader.
        epoch: From 0 up.
        step: Within the epoch, from 0 up.
        size: Number of samples of the batch over all ranks, at least 1.
        last: Whether the epoch ends with it.
        position: Index in the batch of this rank's first sample.
    """

    fields: Mapping[str, Array | Tensor]
    ids: NDArray[np.int64]
    epoch: int
    step: int
    size: int
    last: bool
    position: int = 0


class RankSlice(NamedTuple):
    """The samples that a rank reads for one step; fields as in `Batch`."""

    ids: NDArray[np.int64]
    epoch: int
    step: int
    size: int
    last: bool
    position: int = 0


class Samples(Protocol):
    """A source of samples indexed by number, such as an `OpenReader`."""

    @property
    def role(self) -> str:
        """One of "train", "validate", "test", "tournament"."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> Mapping[str, Array | Tensor]:
        """For each field (n, *shape), as `OpenReader.read`."""
        ...


@runtime_checkable
class ConsecutiveSamples(Protocol):
    """A source whose consecutive samples are read faster than any others."""

    def read_consecutive(self, first: int, count: int) -> Mapping[str, Array | Tensor]:
        """What `Samples.read` returns for the samples first, ..., first + count − 1."""
        ...


class Feed(Protocol):
    """The batches of one mode of a run, epoch after epoch.

    Sizes that are unknown before the end of the first epoch are None until then.
    """

    @property
    def num_samples(self) -> int | None:
        """Number of samples of an epoch, over all ranks."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of batches of an epoch, the partial one included."""
        ...

    @property
    def first_size(self) -> int | None:
        """Size of all batches but the last one."""
        ...

    @property
    def last_size(self) -> int | None:
        """Size of the last batch, which may be a partial one."""
        ...

    def epoch(self, epoch: int, start_step: int = 0, start_sample: int | None = None) -> Generator[Batch, None, None]:
        """The batches of an epoch after `start_step` steps, which had `start_sample` samples.

        Close the generator, or exhaust it, to end prefetching.
        """
        ...


def share(size: int, rank: int, ranks: int, unit: int = 1) -> tuple[int, int]:
    """First and last index (exclusive) of a rank's samples in a batch of `size` samples; units are never split."""
    units = -(-size // unit)
    begin, end = (min(units * number // ranks * unit, size) for number in (rank, rank + 1))
    return begin, end


class Batches:
    """All batches of a reader, as a function of (seed, epoch, step) alone.

    Args:
        reader: Where the samples come from.
        batch_size: Samples of a step over all ranks; the last step of an epoch has the rest.
        seed: Of the order of the samples.
        shuffle: Whether each epoch has an order of its own, or that of the reader.
        rank: This rank, in 0, ..., ranks − 1.
        ranks: Number of ranks that share each batch.
        ahead: Batches that a thread prefetches; 0 reads each on demand. The batches are the same.
        stream: Reads slice after slice where the reader has something faster than `read`, and yields the fields and
            the numbers of the samples; numbers differ from those requested where samples were replaced.
        drop_last: Leave out the samples of an epoch that do not fill a batch; each epoch leaves out others.
        unit: Samples of a batch that stay together on one rank.
        sampler: Which sample is at a position, in place of `shuffle`.
        close: Ends what `stream` reads with.

    Raises:
        ConfigurationError: batch_size is below 1 or the rank is not one of the ranks.
        DataError: drop_last leaves no batch at all.
    """

    def __init__(
        self,
        reader: Samples,
        batch_size: int,
        seed: int,
        shuffle: bool,
        rank: int = 0,
        ranks: int = 1,
        ahead: int = 2,
        stream: Callable[[Iterator[RankSlice]], Generator[Rows, None, None]] | None = None,
        drop_last: bool = False,
        unit: int = 1,
        sampler: Sampler | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"the mini-batch size must be an integer >= 1, got {batch_size}")
        if not 0 <= rank < ranks:
            raise ConfigurationError(f"rank must be an integer >= 0 and < {ranks}, got {rank}")
        self.reader = reader
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.ranks = ranks
        self.ahead = ahead
        self.drop_last = drop_last
        self.unit = unit
        self.sampler = sampler
        self._stream = stream
        self._close = close
        self._memory = BatchMemory()
        if self.num_samples == 0:
            raise DataError(
                f"{len(reader):,} samples with batch_size={batch_size:,} and drop_last=True leave no step in an epoch: "
                "choose a smaller batch_size or drop_last=False"
            )

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""
        count = len(self.reader) if self.sampler is None else self.sampler.size(len(self.reader))
        return count - count % self.batch_size if self.drop_last else count

    @property
    def first_size(self) -> int:
        """Size of all batches but the last one."""
        return self._size(0)

    @property
    def last_size(self) -> int:
        """Size of the last batch, which may be a partial one."""
        return self._size((self.steps_per_epoch - 1) * self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch, the partial one included."""
        return -(-self.num_samples // self.batch_size)

    @property
    def notes(self) -> list[str]:
        """Warnings to print once before the run; usually none. An evaluation is the same in batches of any size."""
        if self.batch_size <= self.num_samples or self.reader.role != "train":
            return []
        return [
            f"the mini-batch size {self.batch_size:,} is more than the {self.num_samples:,} samples of the reader for "
            f"'{self.reader.role}': each epoch is one partial batch of {self.num_samples:,}"
        ]

    def close(self) -> None:
        """End the processes that read, if there are any."""
        if self._close is not None:
            self._close()

    def check_first_sample(self) -> None:
        """Read one sample, so that an unreadable file ends the run before training starts.

        Raises:
            DataError: from the reader.
        """
        self.reader.read(np.zeros(1, dtype=np.int64))

    def epoch(self, epoch: int, start_step: int = 0, start_sample: int | None = None) -> Generator[Batch, None, None]:
        """The batches of an epoch from a step on; skipped batches cost nothing.

        Close the generator (or exhaust it) to end its thread.

        Args:
            epoch: From 0 up.
            start_step: Number of the first batch.
            start_sample: Its first position, where the batches before it were of another size.

        Raises:
            DataError: from the iteration, when samples cannot be read.
        """
        first = start_step * self.batch_size if start_sample is None else start_sample
        batches = self._batches(epoch, start_step, first)
        try:
            yield from prefetched(batches, self.ahead) if self.ahead else batches
        finally:
            self._memory.give_back()

    def share_of(self, epoch: int, step: int) -> RankSlice:
        """The samples that this rank reads for one step of an epoch."""
        return next(self._shares(epoch, step, step * self.batch_size))

    def of_step(self, epoch: int, step: int) -> Batch:
        """The batch of one step of an epoch, read at once and in this process.

        Raises:
            DataError: samples cannot be read.
        """
        part = self.share_of(epoch, step)
        return Batch(self.reader.read(part.ids, epoch), *part)

    def _batches(self, epoch: int, start_step: int, start_sample: int) -> Generator[Batch, None, None]:
        shares = self._shares(epoch, start_step, start_sample)
        if self._stream is None:
            in_order = not self.shuffle and self.sampler is None
            read = _read_in_order(self.reader) if in_order else self.reader.read
            for part in shares:
                fields = read(part.ids, epoch)
                self._memory.count(fields)
                yield Batch(fields, *part)
                del fields  # a batch is not held while the next one is read
            return
        for_batches, for_reading = tee(shares)
        with closing(self._stream(for_reading)) as rows:
            for part, (fields, ids) in zip(for_batches, rows, strict=True):
                self._memory.count(fields)
                yield Batch(fields, ids, *part[1:])
                del fields

    def _shares(self, epoch: int, step: int, start_sample: int) -> Generator[RankSlice, None, None]:
        """What this rank reads, step after step."""
        # A batch size that is set meanwhile does not apply to this iteration.
        batch_size, end = self.batch_size, self.num_samples
        starts = range(start_sample, end, batch_size)
        final = step + len(starts) - 1
        steps_at_once = max(1, ORDERED_AT_ONCE * self.ranks // batch_size)
        for i in range(0, len(starts), steps_at_once):
            some = [(start, min(batch_size, end - start)) for start in starts[i : i + steps_at_once]]
            bounds = {size: self._share(size) for size in {size for _, size in some}}  # the last one may be smaller
            ids, taken = self._ids(epoch, _positions(some, bounds, self.ranks)), 0
            for _, size in some:
                first, stop = bounds[size]
                yield RankSlice(ids[taken : taken + stop - first], epoch, step, size, step == final, first)
                taken, step = taken + stop - first, step + 1

    def _ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the samples at some positions of an epoch."""
        count = len(self.reader)
        if self.sampler is None:
            return order(self.seed, epoch, positions, count, self.shuffle)
        return checked_ids(self.sampler, self.sampler.ids(self.seed, epoch, positions, count), positions, count)

    def _share(self, size: int) -> tuple[int, int]:
        return share(size, self.rank, self.ranks, self.unit)

    def _size(self, start: int) -> int:
        return min(self.batch_size, self.num_samples - start)


def _positions(
    batches: Sequence[tuple[int, int]], bounds: Mapping[int, tuple[int, int]], ranks: int
) -> NDArray[np.int64]:
    """The positions in an epoch that a rank reads of batches (first position, size) that follow one another."""
    if ranks == 1:
        return np.arange(batches[0][0], sum(batches[-1]), dtype=np.int64)
    own = [np.arange(start, start + size, dtype=np.int64)[slice(*bounds[size])] for start, size in batches]
    return np.concatenate(own)


def _read_in_order(reader: Samples) -> Callable[[NDArray[np.int64], int], Mapping[str, Array | Tensor]]:
    """`Samples.read` for samples that follow one another."""
    if not isinstance(reader, ConsecutiveSamples):
        return reader.read
    return lambda ids, epoch: reader.read_consecutive(int(ids[0]) if len(ids) else 0, len(ids))
