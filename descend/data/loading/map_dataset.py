"""Reads map-style data sets: sample by sample, each with random numbers of its own, then collated.

What a sample draws from the global generators of torch, NumPy and Python is a function of (seed, role, epoch, sample),
so it depends neither on the process that reads it nor on what was read before. Seeding three generators takes longer
than reading many a sample, so it is done only after a data set was observed to draw from them.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from descend.data.nested_fields import as_rows, fields_of, form_of
from descend.data.order import key_of, mix
from descend.data.plain_arrays import plain_sample
from descend.errors import DataError, DescendError, warn
from descend.machine import join_threads_at_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import Tensor

    from descend.data.loading.batches import RankSlice
    from descend.data.loading.workers import Pool
    from descend.data.reader_protocol import Array

__all__ = ["BadSample", "Dataset", "IndexedRows", "Pipeline", "SamplePipeline", "SampleReader"]

_LISTED = 10


class Dataset(Protocol):
    """Samples indexed by number, as in torch's map-style data sets."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """A tuple, a dictionary or a single value."""
        ...


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used, and the reason."""

    id: int
    reason: str


@dataclass(frozen=True)
class IndexedRows:
    """Collated samples: (n, *shape) tensors by field, their numbers, and the samples that were replaced."""

    fields: dict[str, Tensor]
    ids: NDArray[np.int64]
    bad: list[BadSample]


class Pipeline(Protocol):
    """Reads samples by number, in this process or in another one; must be picklable for that."""

    replace_bad: bool

    @property
    def role(self) -> str:
        """What the samples are for."""
        ...

    @property
    def name(self) -> str:
        """The name of the data set in errors."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, ids: NDArray[np.int64], epoch: int, begin: Callable[[int], None]) -> IndexedRows:
        """See `SamplePipeline.read`."""
        ...

    def kept(self) -> AbstractContextManager[None]:
        """Undoes on exit what `read` changed in this process."""
        ...


@dataclass
class SamplePipeline:
    """Reads and collates samples; everything that a worker process needs.

    Args:
        dataset: The data set.
        collate: Makes a batch of a list of samples; None for torch's `default_collate`.
        seed: Of the random numbers.
        role: What the samples are for.
        replace_bad: Take the next sample for one that cannot be used, instead of raising.

    Attributes:
        draws: Whether the data set was observed to draw from the global generators.
    """

    dataset: Dataset
    collate: Callable[[list[Any]], Any] | None
    seed: int
    role: str
    replace_bad: bool = False
    draws: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The name of the data set in errors."""
        return f"{type(self.dataset).__name__} for '{self.role}'"

    def __len__(self) -> int:
        return len(self.dataset)

    def kept(self) -> AbstractContextManager[None]:
        """Restores the global random generators on exit."""
        return kept()

    def read(self, ids: NDArray[np.int64], epoch: int, begin: Callable[[int], None]) -> IndexedRows:
        """Read samples; changes the state of the global generators.

        Args:
            ids: (n,) numbers of samples; n may be 0.
            epoch: From 0 up.
            begin: Called with the number of each sample before it is read.

        Raises:
            DataError: a sample cannot be used, or the samples cannot be collated.
        """
        if len(ids) == 0:  # a rank without samples still needs the fields
            whole = self.read(np.zeros(1, dtype=np.int64), epoch, begin)
            return IndexedRows({name: tensor[:0] for name, tensor in whole.fields.items()}, ids, [])
        if self.draws:
            return self._read(ids, epoch, begin)
        before = snapshot()
        try:
            rows = self._read(ids, epoch, begin)
        except DataError:
            if before == snapshot():
                raise
        else:
            if before == snapshot():
                return rows
        self.draws = True
        return self._read(ids, epoch, begin)  # again, now each sample with random numbers of its own

    def _read(self, ids: NDArray[np.int64], epoch: int, begin: Callable[[int], None]) -> IndexedRows:
        bad: list[BadSample] = []
        taken = [self._take(i, epoch, bad, begin) for i in ids.tolist()]
        while True:
            odd = {} if self.collate or _alike([sample for _, sample in taken]) else _odd(taken)
            if not odd:
                try:
                    fields = self._together(taken)
                    break
                except DataError:
                    odd = {} if self.collate else _odd(taken)
                    if not odd:
                        raise
            for place, reason in odd.items():
                self._refuse(BadSample(taken[place][0], reason), bad)
                taken[place] = self._take(self._next(taken[place][0]), epoch, bad, begin)
        return IndexedRows(fields, np.array([i for i, _ in taken], dtype=np.int64), bad)

    def _take(self, i: int, epoch: int, bad: list[BadSample], begin: Callable[[int], None]) -> tuple[int, Any]:
        """The sample with number `i`, or the next one that can be read, and its number."""
        while True:
            begin(i)
            if self.draws:
                seed(self._stream(i, epoch))
            try:
                return i, plain_sample(self.dataset[i])
            except Exception as error:
                reason = str(error) if isinstance(error, DescendError) else f"{type(error).__name__}: {error}"
                self._refuse(BadSample(i, reason), bad, error)
            i = self._next(i)

    def _next(self, i: int) -> int:
        return (i + 1) % len(self.dataset)

    def _refuse(self, sample: BadSample, bad: list[BadSample], error: Exception | None = None) -> None:
        if not self.replace_bad or len(bad) >= len(self.dataset):
            raise DataError(
                f"sample {sample.id} of {self.name} cannot be used: {sample.reason}; "
                "fix it, or pass skip_bad=n to replace up to n such samples by the next one"
            ) from error
        bad.append(sample)

    def _stream(self, i: int, epoch: int) -> int:
        key = key_of("sample", self.seed, self.role, epoch)
        return int(mix(mix(np.array([i], dtype=np.uint64)) + key)[0])

    def _together(self, taken: Sequence[tuple[int, Any]]) -> dict[str, Tensor]:
        from torch.utils.data import default_collate

        ids = [i for i, _ in taken]
        samples = [sample for _, sample in taken]
        try:
            batch = (self.collate or default_collate)(samples)
        except Exception as error:
            raise DataError(f"samples {ids} of {self.name} cannot be collated: {error}") from error
        return as_rows(batch, f"samples {ids[0]}, … of {self.name}", len(ids))


def _alike(samples: Sequence[Any]) -> bool:
    """Whether samples have the same fields of the same types; False where `_odd` must compare them in detail.

    Shapes are checked when the samples are stacked; fields and types are not, since torch silently drops a field that
    the first sample lacks and converts all values to the widest type.
    """
    first = samples[0]
    if isinstance(first, dict):
        keys = cast("dict[str, Any]", first).keys()
        return all(isinstance(sample, dict) and sample.keys() == keys for sample in samples) and all(
            _one_type([sample[key] for sample in samples]) for key in keys
        )
    if isinstance(first, (tuple, list)):
        count = len(cast("Sequence[Any]", first))
        return all(isinstance(sample, (tuple, list)) and len(sample) == count for sample in samples) and all(
            _one_type([sample[k] for sample in samples]) for k in range(count)
        )
    return _one_type(samples)


def _one_type(values: Sequence[Any]) -> bool:
    kinds = {(type(value), getattr(value, "dtype", None)) for value in values}
    return len(kinds) == 1 and not isinstance(values[0], (dict, tuple, list))


def _odd(taken: Sequence[tuple[int, Any]]) -> dict[int, str]:
    """Indices of the samples whose form is not the most common one, with the difference."""
    forms = [{name: form_of(value) for name, value in fields_of(sample).items()} for _, sample in taken]
    counts = Counter(tuple(form.items()) for form in forms)
    if len(counts) == 1:
        return {}
    usual = dict(counts.most_common(1)[0][0])
    return {place: _difference(form, usual) for place, form in enumerate(forms) if form != usual}


def _difference(form: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    texts = [
        f"field '{name}' is {form.get(name, 'missing')} and {usual.get(name, 'missing')} in other samples"
        for name in {**usual, **form}
        if form.get(name) != usual.get(name)
    ]
    return ", ".join(texts)


@dataclass
class SampleReader:
    """A map-style data set, or files, as a source of batches.

    Args:
        pipeline: Reads the samples.
        skip_bad: This many samples that cannot be used are replaced by the next one; one more ends the run.
        timeout_seconds: Longest time for one batch; None waits for ever.
        pool: Worker processes that read; None reads in this process.

    Attributes:
        bad: The samples that were replaced so far: number to reason.
    """

    pipeline: Pipeline
    skip_bad: int = 0
    timeout_seconds: float | None = None
    pool: Pool | None = None
    bad: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def role(self) -> str:
        """What the samples are for."""
        return self.pipeline.role

    def __len__(self) -> int:
        return len(self.pipeline)

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Tensor]:
        """Read samples in this process; see `SamplePipeline.read`."""
        with self.pipeline.kept():
            return self._note(self._here(indices, epoch)).fields

    def stream(self, shares: Iterator[RankSlice]) -> Generator[tuple[Mapping[str, Array | Tensor], NDArray[np.int64]]]:
        """Read share after share, in the order given."""
        tasks = ((share.ids, share.epoch) for share in shares)
        rows = self.pool.stream(tasks) if self.pool else (self._here(*task) for task in tasks)
        with self.pipeline.kept(), closing(rows):
            for some in rows:
                self._note(some)
                yield some.fields, some.ids

    def close(self) -> None:
        """End the processes that read."""
        if self.pool:
            self.pool.close()

    def _here(self, ids: NDArray[np.int64], epoch: int) -> IndexedRows:
        if self.timeout_seconds is None:
            return self.pipeline.read(ids, epoch, lambda i: None)
        return self._in_time(ids, epoch, self.timeout_seconds)

    def _in_time(self, ids: NDArray[np.int64], epoch: int, seconds: float) -> IndexedRows:
        """Read in a thread, which is abandoned if it hangs; it is a daemon and ends with the process."""
        at: list[int] = []
        outcome: list[IndexedRows | BaseException] = []

        def work() -> None:
            try:
                outcome.append(self.pipeline.read(ids, epoch, at.append))
            except BaseException as error:  # of any type: it is raised in the waiting thread
                outcome.append(error)

        join_threads_at_exit()
        thread = threading.Thread(target=work, name="descend-read", daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcome:
            which = f"sample {at[-1]}" if at else "the first sample"  # on a busy host the thread may not have begun
            raise DataError(f"{which} of {self.pipeline.name} is not read after {seconds:g} seconds: it hangs")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _note(self, rows: IndexedRows) -> IndexedRows:
        """Count and list the samples that were replaced."""
        for sample in rows.bad:
            if sample.id in self.bad:
                continue
            self.bad[sample.id] = sample.reason
            if len(self.bad) > self.skip_bad:
                raise DataError(
                    [
                        f"{len(self.bad)} samples of {self.pipeline.name} cannot be used and skip_bad={self.skip_bad}:",
                        *(f"    sample {i}: {reason}" for i, reason in sorted(self.bad.items())[:_LISTED]),
                    ]
                )
            warn(
                f"sample {sample.id} of {self.pipeline.name} is replaced by the next one ({len(self.bad)} of "
                f"{self.skip_bad} allowed): {sample.reason}"
            )
        return rows


# ---- seeds, snapshots and restores the global generators of torch, NumPy and Python, from which a data set may draw

_MT19937_BYTES = 4 * 624 + 4  # its words and the position of the next one


def seed(number: int) -> None:
    """Seed all three."""
    import torch

    torch.default_generator.manual_seed(number >> 1)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def snapshot() -> tuple[Any, ...]:
    """The state of all three; equal to an earlier snapshot if none of the three was drawn from."""
    import torch

    return torch.default_generator.get_state().numpy().tobytes(), _numpys(), random.getstate()


@contextmanager
def kept() -> Generator[None, None, None]:
    """Restore the state of all three on exit."""
    import torch

    of_torch, of_numpy, of_python = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _numpys() -> Any:
    generator = cast("Any", np.random).get_bit_generator()  # missing in NumPy's own types
    if not isinstance(generator, np.random.MT19937):  # np.random.set_bit_generator was called
        return str(generator.state)
    # Its `state` takes 30 µs, which is long compared with a batch of a small network.
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
