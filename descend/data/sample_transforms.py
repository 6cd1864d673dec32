"""Applies the transforms of a reader to its samples, whole batches at once where the samples have one shape.

Images of different sizes are transformed one by one up to the first transform whose output has a known shape, and
together from there on. Both give the same, since the random numbers of a sample are its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.counter_rng import Draws, key_of
from descend.data.loading.read_threads import in_threads
from descend.data.transforms import RESCALES, MixingTransform
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array, SampleSource
    from descend.data.transforms import Transform

__all__ = ["SampleTransforms"]

_BLOCK_NUMBERS = 2**17  # of the images that a thread transforms together: as float32 they stay in a core's cache


@dataclass(frozen=True)
class SampleTransforms:
    """Transforms in order, for the samples of a source.

    A source whose field "samples" has a shape with −1 gives its samples by a method `images(sample, which)`, has
    `images_per_sample` of them for each, which are transformed on their own and joined along their channels, and says
    by `blue_first` whether colours are blue, green, red behind the image transforms.

    Args:
        source: Of the samples.
        transforms: In order.
        key: Of the random numbers, without the epoch.
    """

    source: SampleSource
    transforms: Sequence[Transform] = field(repr=False)
    key: np.uint64 = field(repr=False)

    @cached_property
    def mixing(self) -> list[MixingTransform]:
        """The transforms that need a second sample; they come last."""
        return [one for one in self.transforms if isinstance(one, MixingTransform)]

    def output_shape(self) -> tuple[int, ...]:
        """The shape of a sample, by shapes alone: a check must not allocate a sample of any size.

        Where the size of the images remains unknown, it is that of the first one.
        """
        shape = self.source.fields["samples"].shape
        for transform in self.transforms:
            shape = transform.output_shape(shape)
        if -1 in shape:
            shape = self._images(np.zeros(1, np.int64), 0, 0).shape[1:]
        return (shape[0] * self._images_per_sample, *shape[1:]) if self._is_ragged else shape

    def apply(self, samples: Array | None, numbers: NDArray[np.int64], epoch: int) -> Array:
        """The transformed samples; `samples` is None where the source gives single images."""
        if not self._is_ragged:
            key = key_of("epoch", int(self.key), epoch)
            return self._rest(cast("Array", samples), Draws(key, numbers), self.transforms)
        if len(numbers) == 0:
            return np.empty((0, *self.output_shape()), np.float32)
        parts = [self._images(numbers, epoch, which) for which in range(self._images_per_sample)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @property
    def _is_ragged(self) -> bool:
        return -1 in self.source.fields["samples"].shape

    @property
    def _images_per_sample(self) -> int:
        return getattr(self.source, "images_per_sample", 1)

    def _rest(self, x: Array, draws: Draws, transforms: Sequence[Transform], reverse: bool = False) -> Array:
        for transform in transforms:
            if reverse and isinstance(transform, RESCALES):
                x, reverse = x[:, ::-1], False
            x = transform.apply(x, draws)
        return x[:, ::-1] if reverse else x

    def _images(self, numbers: NDArray[np.int64], epoch: int, which: int) -> Array:
        key = key_of("epoch", int(self.key), epoch) if which == 0 else key_of("image", which, int(self.key), epoch)
        draws = Draws(key, numbers)
        alone = self._alone
        of_rows = [draws.of_rows(slice(row, row + 1)) for row in range(len(numbers))]

        def transformed(row: int) -> Array:
            image = cast("Any", self.source).images(int(numbers[row]), which)
            return self._rest(image[None], of_rows[row], self.transforms[:alone])

        images = in_threads(transformed, len(numbers))
        if odd := [at for at, image in enumerate(images) if image.shape != images[0].shape]:
            raise DataError(
                f"images differ in shape: {images[odd[0]].shape[1:]} of sample {numbers[odd[0]]} and "
                f"{images[0].shape[1:]} of sample {numbers[0]}; bring them to one with the transforms Resize (or a "
                f"crop) "
                "and Colorize"
            )
        reverse = bool(getattr(self.source, "blue_first", False)) and images[0].shape[1] == 3
        rest, taken = self.transforms[alone:], of_rows[-1]
        empty = self._rest(images[0][:0], draws.of_rows(slice(0)).after(taken), rest, reverse)
        found = np.empty((len(images), *empty.shape[1:]), empty.dtype)
        together = max(1, _BLOCK_NUMBERS // max(1, images[0].size))

        def finish(block: int) -> None:
            some = slice(block * together, (block + 1) * together)
            x = np.concatenate(images[some]) if together > 1 else images[block]
            found[some] = self._rest(x, draws.of_rows(some).after(taken), rest, reverse)

        in_threads(finish, -(-len(images) // together))
        return found

    @cached_property
    def _alone(self) -> int:
        """How many transforms come before the shape is known: only those work on single images."""
        shape = self.source.fields["samples"].shape
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, RESCALES):
                return place
            shape = transform.output_shape(shape)
            if -1 not in shape:
                return place + 1
        return len(self.transforms)
