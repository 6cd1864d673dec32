"""Transformed fields of what `read` reads: `transform(read("images/", image_size=40), [RandomCrop(32, 32)])`.

The transforms are those of `descend.data.transforms`. What a random one draws is a function of the seed of the run, the
role, the epoch and the number of the sample, whatever the batches, ranks and workers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.files import FileReader, read
from descend.data.loading.read_threads import in_threads
from descend.data.order import Draws, key_of
from descend.data.reader_protocol import Field, WrappedSource
from descend.data.transforms import RESCALES, MixingTransform, Transform
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource
    from descend.data.reader_protocol import Array

__all__ = ["TransformedSource", "transform"]

_BLOCK_NUMBERS = 2**20  # of a block that a thread transforms


def transform(data: Any, transforms: Sequence[Transform], field: str | None = None) -> FileReader:
    """A reader with a field transformed.

    Args:
        data: A reader, or anything that `read` takes.
        transforms: Applied in this order.
        field: Its name; by default the one field of images.

    Raises:
        ConfigurationError: there is no such field, or a transform is wrong or does not fit the samples.
    """
    reader = data if isinstance(data, FileReader) else read(data)
    if field is None and len(reader.pixels) == 1:
        (field,) = reader.pixels
    if field is None or field not in reader.fields:
        what = "field= must name a field" if field is None else f"there is no field '{field}'"
        near = "" if field is None else nearest(field, reader.fields)
        raise ConfigurationError(f"transform: {what}{near}; the fields are {', '.join(reader.fields)}")
    problems: list[str] = []
    given: Sequence[Any] = transforms
    for one in given:
        if isinstance(one, MixingTransform):
            problems.append(f"transform: {one!r} mixes two samples, which the transforms of a `descend.Reader` do")
        elif not isinstance(one, Transform):
            problems.append(f"transform: {one!r} is none of `descend.data.transforms`")
        else:
            problems += [f"transform {type(one).__name__}: {problem}" for problem in one.problems()]
    if problems or not transforms:
        raise ConfigurationError(problems or "transform: there are no transforms")
    source = TransformedSource(reader.source, reader.names[field], tuple(transforms))
    return replace(reader, source=source)


class TransformedSource(WrappedSource):
    """The samples of a source, with a field transformed; see `FileSource`.

    Args:
        source: The samples.
        field: The name of the field in the source.
        transforms: In order.
    """

    def __init__(self, source: FileSource, field: str, transforms: Sequence[Transform]) -> None:
        super().__init__(source)
        self._field, self._transforms = field, transforms
        self._key, self._epoch = key_of("transform", 0, "train", field), 0
        one = source.fields[field]
        if one.dtype.kind not in "iufb":
            raise ConfigurationError(f"transform: the field '{field}' has {one.dtype}, and transforms are of numbers")
        shape = one.shape
        for each in transforms:
            shape = each.output_shape(shape)
        kept = one.dtype == np.uint8 and not any(isinstance(each, RESCALES) for each in transforms)
        self.fields: Mapping[str, Field] = {**source.fields, field: Field(shape, np.dtype(np.uint8 if kept else "f4"))}
        self.pixels = self.pixels if kept else self.pixels - {field}

    def in_run(self, seed: int, role: str) -> Self:
        """The samples with the random numbers of a run."""
        other = super().in_run(seed, role)
        other = self._over(self._source) if other is self else other
        other._key = key_of("transform", seed, role, self._field)
        return other

    def at_epoch(self, epoch: int) -> Self:
        """The samples of an epoch."""
        other = super().at_epoch(epoch)
        other = self._over(self._source) if other is self else other
        other._epoch = epoch
        return other

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others; not the one that is transformed."""
        return None if name == self._field else super().column(name)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        found = self._source.read(samples)
        before, field = found[self._field], self.fields[self._field]
        after = np.empty((len(samples), *field.shape), field.dtype)
        rows = max(1, _BLOCK_NUMBERS // max(1, math.prod(before.shape[1:])))  # what a sample gets is its own

        def transform_block(block: int) -> None:
            some = slice(block * rows, (block + 1) * rows)
            draws = Draws(key_of("epoch", int(self._key), self._epoch), samples[some])
            x = before[some]
            for one in self._transforms:
                x = one.apply(x, draws)
            after[some] = x

        in_threads(transform_block, -(-len(samples) // rows))
        return {**found, self._field: after}
