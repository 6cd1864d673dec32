"""Puts the single samples of an IterableDataset into batches, and finds out where it yields batches instead.

Which of the two it yields cannot be known. Fields of one length and of different shapes, such as (50, 20) and (50,),
are most likely a batch of 50, and the same number as the batch size settles it; a sequence with a label at each place
looks like that, too. So the message says how to say it: a DataLoader is taken as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from descend.data.nested_fields import fields_of, form_of
from descend.data.plain_arrays import plain_collate, plain_convert
from descend.errors import ConfigurationError, DataError, DescendError, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import DataLoader, IterableDataset

__all__ = ["sample_stream"]


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
