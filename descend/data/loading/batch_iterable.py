"""Batches of data that are iterated: lists, iterables, functions, and single samples that become batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import called, shown, takes_arguments
from descend.data.loading.batches import Batch, share
from descend.data.nested_fields import as_rows, digest_of, fields_of, form_of, spread
from descend.data.plain_arrays import plain_collate, plain_convert
from descend.errors import ConfigurationError, DataError, DescendError, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from torch import Tensor
    from torch.utils.data import DataLoader, IterableDataset

__all__ = ["BatchIterable", "sample_stream"]

_FUNCTION = "a function without arguments, or with the number of the epoch, that returns an iterable of batches"
_COMPARED = 64  # batches of a list that ranks compare


class BatchIterable:
    """Batches in the order in which the source yields them.

    The sizes of an epoch are known from the beginning for a list and after the first epoch for anything else. A run
    that is resumed within an epoch reads the first batches again and discards them; of a list it skips them.

    Args:
        source: A list or tuple of batches; an object whose `iter()` starts over each time; a function without
            arguments, or with the number of the epoch, that returns an iterable.
        batch_size: Size of every batch but the last; None takes them as they are.
        role: What the samples are for.
        rank: This rank, which takes its share of each batch.
        ranks: Number of ranks.
        unit: Samples of a batch that stay together on one rank.

    Attributes:
        digests: With several ranks, hashes of batches that are spread over a list, by "batch N"; of nothing else.
        digest: With several ranks a hash of the first batch that was read of anything but a list; None before that.
        is_compared: Whether ranks have compared that first batch.

    Raises:
        ConfigurationError: the source can be iterated only once.
        DataError: a list is empty, or a batch is of another size.
    """

    digest: str | None = None
    is_compared: bool = False

    def __init__(
        self,
        source: Iterable[Any] | Callable[..., Iterable[Any]],
        batch_size: int | None,
        role: str,
        rank: int = 0,
        ranks: int = 1,
        unit: int = 1,
    ) -> None:
        self._source: Any = source
        self._takes = _arguments_of(source, f"data for '{role}'")
        self._list = source if isinstance(source, (list, tuple)) else None
        self.batch_size = batch_size
        self.role = role
        self.rank = rank
        self.ranks = ranks
        self.unit = unit
        self._sizes: list[int] | None = None
        self.digests: dict[str, str] = {}
        if self._list is not None:
            rows = [as_rows(batch, self._place(step)) for step, batch in enumerate(self._list)]
            self._sizes = [_length(row) for row in rows]
            if ranks > 1 and rows:
                self.digests = {f"batch {i}": digest_of(rows[i]) for i in spread(len(rows), _COMPARED).tolist()}
            self._check_some(len(self._sizes), 0)
            for step, size in enumerate(self._sizes):
                self._check_size(size, step, step == len(self._sizes) - 1)

    @property
    def is_list(self) -> bool:
        """Whether all batches are there from the beginning."""
        return self._list is not None

    @property
    def num_samples(self) -> int | None:
        """See `Feed.num_samples`."""
        return None if self._sizes is None else sum(self._sizes)

    @property
    def steps_per_epoch(self) -> int | None:
        """See `Feed.steps_per_epoch`."""
        return None if self._sizes is None else len(self._sizes)

    @property
    def first_size(self) -> int | None:
        """See `Feed.first_size`."""
        return self.batch_size if self._sizes is None else self._sizes[0]

    @property
    def last_size(self) -> int | None:
        """See `Feed.last_size`."""
        return None if self._sizes is None else self._sizes[-1]

    def epoch(self, epoch: int, start_step: int = 0, start_sample: int | None = None) -> Generator[Batch, None, None]:
        """See `Feed.epoch`."""
        sizes: list[int] = [] if self._list is None else list(self._sizes or [])[:start_step]
        batches = iter(self._opened(epoch)) if self._list is None else iter(self._list[start_step:])
        step = len(sizes)
        following = next(batches, None)
        while following is not None:
            batch, following = following, next(batches, None)
            rows = as_rows(batch, self._place(step))
            if self.ranks > 1 and self.digest is None and self._list is None:
                self.digest = digest_of(rows)
            size = _length(rows)
            self._check_size(size, step, following is None)
            if step >= start_step:
                yield self._batch(rows, epoch, step, sum(sizes), size, following is None)
            sizes.append(size)
            step += 1
        self._check_some(step, epoch)
        self._sizes = sizes

    def _batch(self, rows: dict[str, Tensor], epoch: int, step: int, first: int, size: int, last: bool) -> Batch:
        begin, end = share(size, self.rank, self.ranks, self.unit)
        fields = {name: row[begin:end] for name, row in rows.items()}
        return Batch(fields, np.arange(first + begin, first + end, dtype=np.int64), epoch, step, size, last, begin)

    def _opened(self, epoch: int) -> Iterable[Any]:
        if self._takes is None:
            return self._source
        opened = called(f"data for '{self.role}'", _FUNCTION, self._source, *[epoch][: self._takes])
        if not hasattr(opened, "__iter__"):
            raise DataError(
                f"data for '{self.role}' must be {_FUNCTION}, got {shown(self._source)}, which returns {shown(opened)}"
            )
        return opened

    def _place(self, step: int) -> str:
        return f"batch {step} for '{self.role}'"

    def _check_size(self, size: int, step: int, last: bool) -> None:
        wanted = self.batch_size
        if wanted is None or size == wanted or (last and 0 < size < wanted):
            return
        raise DataError(
            f"{self._place(step)} has {size} samples and batch_size is {wanted}: make them equal (the last batch of an "
            "epoch may be smaller), or pass batch_size=None to take the batches as they are"
        )

    def _check_some(self, steps: int, epoch: int) -> None:
        if steps == 0:
            raise DataError(
                f"epoch {epoch} for '{self.role}' has 0 batches, and at least 1 is needed; if the first epoch had "
                "some, pass a list or a function that opens the data again"
            )


def _length(rows: dict[str, Tensor]) -> int:
    return len(next(iter(rows.values())))


def _arguments_of(source: Any, name: str) -> int | None:
    """How many arguments a function takes that makes the batches of an epoch; None: the source is iterated itself."""
    if hasattr(source, "__next__"):
        raise ConfigurationError(
            f"{name} must be batches for each epoch, got a {type(source).__name__}, which can be iterated only once: "
            "pass a list of batches, or the function that makes the generator, without calling it"
        )
    if hasattr(source, "__iter__"):
        return None
    takes = next((count for count in (1, 0) if takes_arguments(source, count)), None)
    if takes is None:
        raise ConfigurationError(
            f"{name} must be {_FUNCTION}, got {shown(source)}: give its other arguments by functools.partial"
        )
    return takes


# ---- puts the single samples of an IterableDataset into batches, and finds out where it yields batches instead
#
# Which of the two it yields cannot be known. Fields of one length and of different shapes, such as (50, 20) and (50,),
# are most likely a batch of 50, and the same number as the batch size settles it; a sequence with a label at each place
# looks like that, too. So the message says how to say it: a DataLoader is taken as it is.


def sample_stream(dataset: IterableDataset[Any], batch_size: int | None) -> DataLoader[Any]:
    """The loader of a data set that was given without one.

    Args:
        dataset: Yields samples, or batches if `batch_size` is None.
        batch_size: Samples of a batch.

    Returns:
        A loader in this process. Its first batch raises a ConfigurationError where samples are surely batches, and
        warns where they may be; what cannot be put into one batch is a DataError.
    """
    from torch.utils.data import DataLoader

    if batch_size is None:
        return DataLoader(cast("Any", dataset), batch_size=None, collate_fn=plain_convert)
    collate = _Collate(type(dataset).__name__, batch_size)
    return DataLoader(cast("Any", dataset), batch_size=batch_size, collate_fn=collate)


class _Collate:
    def __init__(self, name: str, batch_size: int) -> None:
        self._name, self._batch_size = name, batch_size
        self._has_looked = False

    def __call__(self, samples: list[Any]) -> Any:
        if not self._has_looked:
            self._has_looked = True
            self._look_at(samples[0])
        try:
            return plain_collate(samples)
        except DescendError:
            raise
        except (RuntimeError, TypeError, KeyError, ValueError) as error:
            shown = " and ".join(dict.fromkeys(_forms(sample) for sample in samples[:1] + samples[-1:]))
            raise DataError(
                f"{self._name} yields {shown}, which cannot be put into one batch ({error}); where it yields batches, "
                "pass batch_size=None, or DataLoader(dataset, batch_size=None)"
            ) from error

    def _look_at(self, sample: Any) -> None:
        """Tell samples from batches.

        Raises:
            ConfigurationError: it is a batch of the size that was asked for.
        """
        shapes: list[tuple[int, ...]] = [tuple(getattr(value, "shape", ())) for value in fields_of(sample).values()]
        if not _of_one_length(shapes):
            return
        length, differ = shapes[0][0], len(set(shapes)) > 1
        known = f"{self._name} yields {_forms(sample)}"
        remedy = "pass batch_size=None, or DataLoader(dataset, batch_size=None); where they are single samples, pass "
        if length == self._batch_size and (differ or len(shapes[0]) > 1):
            raise ConfigurationError(
                f"{known}, which are batches of {length} by their shapes, and batch_size={length} would put {length} "
                f"of them into one: {remedy}DataLoader(dataset, batch_size={length})"
            )
        if differ:
            warn(
                f"{known}, which is taken as one sample, {self._batch_size} of them a batch. Where these are batches, "
                f"{remedy}DataLoader(dataset, batch_size={self._batch_size}), which is taken without this warning"
            )


def _of_one_length(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether these are several arrays with a common first dimension, as the fields of a batch are."""
    return len(shapes) > 1 and all(shapes) and len({shape[0] for shape in shapes}) == 1 and shapes[0][0] > 1


def _forms(sample: Any) -> str:
    return ", ".join(f"'{name}' {form_of(value)}" for name, value in fields_of(sample).items())
