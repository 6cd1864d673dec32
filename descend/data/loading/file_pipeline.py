"""Reads samples of readers for training: whole batches at once, one by one where a sample cannot be used.

What a module needs, and files often have otherwise, is converted here and nowhere else: numbers of 64 bits with a point
become those of torch's default type, and images of integers become numbers from 0 to 1. What a reader of one's own or
one of a description gives is taken as it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from descend.data.loading.map_dataset import BadSample, IndexedRows
from descend.data.loading.read_threads import in_threads
from descend.data.nested_fields import as_rows
from descend.errors import DataError, DescendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from descend.data.files import FileReader  # noqa: F401  # named in a string: the import the other way is at run time
    from descend.data.reader_protocol import Array, OpenReader

__all__ = ["FilePipeline", "ReaderPipeline"]

SomeReader = TypeVar("SomeReader", bound="OpenReader")

_LISTED = 10
_BLOCK_NUMBERS = 2**17


@dataclass
class ReaderPipeline(Generic[SomeReader]):
    """See `descend.data.loading.map_dataset.Pipeline`.

    Args:
        reader: Of any kind.
        replace_bad: Take the next sample for one that cannot be used, instead of raising.
    """

    reader: SomeReader
    replace_bad: bool = False

    @property
    def role(self) -> str:
        """What the samples are for."""
        return self.reader.role

    @property
    def name(self) -> str:
        """The name of the reader in errors."""
        return getattr(self.reader, "name", f"{type(self.reader).__name__} for '{self.role}'")

    def __len__(self) -> int:
        return len(self.reader)

    def kept(self) -> AbstractContextManager[None]:
        """Nothing: readers draw no random numbers from global generators."""
        return nullcontext()

    def read(self, ids: NDArray[np.int64], epoch: int, begin: Callable[[int], None]) -> IndexedRows:
        """See `SamplePipeline.read`; `begin` is called with the first sample of a batch that is read at once.

        Raises:
            DataError: a sample cannot be used, or a field has a type that torch has not.
        """
        bad: list[BadSample] = []
        begin(int(ids[0]) if len(ids) else 0)
        try:
            fields = self._read(ids, epoch)
        except DataError:
            if not self.replace_bad:
                raise
            taken = [self._take(i, epoch, bad, begin) for i in ids.tolist()]
            fields = {name: np.concatenate([rows[name] for _, rows in taken]) for name in self.reader.fields}
            ids = np.array([i for i, _ in taken], dtype=np.int64)
        return IndexedRows(as_rows(self._converted(fields), self.name, len(ids)), ids, bad)

    def _read(self, ids: NDArray[np.int64], epoch: int) -> dict[str, Array]:
        try:
            return self.reader.read(ids, epoch)
        except DescendError:
            raise
        except Exception as error:  # of any kind: the reader may be the user's
            samples = ids.tolist()
            which = f"sample {samples[0]}" if len(samples) == 1 else f"samples {samples[:_LISTED]}"
            raise DataError(f"{which} of {self.name}: {type(error).__name__}: {error}") from error

    def _take(
        self, i: int, epoch: int, bad: list[BadSample], begin: Callable[[int], None]
    ) -> tuple[int, dict[str, Array]]:
        """The sample with number `i`, or the next one that can be read, and its number."""
        while True:
            begin(i)
            try:
                return i, self._read(np.array([i], dtype=np.int64), epoch)
            except DataError as error:
                if len(bad) >= len(self):
                    raise
                bad.append(BadSample(i, str(error)))
            i = (i + 1) % len(self)

    def _converted(self, fields: dict[str, Array]) -> dict[str, Any]:
        return fields


@dataclass
class FilePipeline(ReaderPipeline["FileReader"]):
    """Samples of what `read` reads.

    Args:
        reader: Of files.
        replace_bad: As above.
        not_taken: Fields that the module does not take: texts in them become zeros, which nothing looks at.
    """

    not_taken: tuple[str, ...] = ()

    def _converted(self, fields: dict[str, Array]) -> dict[str, Any]:
        import torch

        usual = np.dtype(str(torch.get_default_dtype()).removeprefix("torch."))
        pixels = self.reader.pixels
        found: dict[str, Any] = {}
        for name, values in fields.items():
            if name in self.not_taken and values.dtype.kind in "UO":
                found[name] = np.zeros(len(values), np.int64)
            elif values.dtype.kind in "UOMm":
                raise DataError(
                    f"{self.name}: the field '{name}' holds {_kind_of(values)}, which a module cannot take: leave it "
                    f"out by descend.data.read(..., fields=[...]), or read it by descend.data.read(..., "
                    f"target='{name}', classes=[...]) if it is a class, with all classes in the order of their numbers "
                    "in training, or without classes= for training itself"
                )
            elif name in pixels and values.dtype.kind == "u":
                found[name] = _from_0_to_1(values, usual)
            elif values.dtype.kind == "f" and values.dtype.itemsize >= 8:
                found[name] = values.astype(usual)
            else:
                found[name] = values
        return found


def _from_0_to_1(values: Array, dtype: np.dtype[Any]) -> Array:
    """Pixels as fractions of the largest number of their type, in blocks by the threads that decode images."""
    found = np.empty(values.shape, dtype)
    largest = np.array(np.iinfo(values.dtype).max, dtype)
    rows = max(1, _BLOCK_NUMBERS // max(1, values[0].size)) if len(values) else 1
    blocks = [slice(first, first + rows) for first in range(0, len(values), rows)]
    in_threads(lambda i: np.divide(values[blocks[i]], largest, out=found[blocks[i]], dtype=dtype), len(blocks))
    return found


def _kind_of(values: Array) -> str:
    return "dates or times" if values.dtype.kind in "Mm" else "text"
