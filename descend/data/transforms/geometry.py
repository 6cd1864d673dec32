"""Transforms that move or hide pixels and compute none: flips, crops, padding, holes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from descend.arguments import check_integer, check_number, collect
from descend.data.transforms.base import (
    ImageTransform,
    Samples,
    Transform,
    along,
    copied,
    flipped,
    image_shape,
    like,
    replaced,
    surrounded,
)
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.data.order import Draws

__all__ = ["CenterCrop", "Cutout", "HorizontalFlip", "Pad", "RandomCrop", "VerticalFlip", "windows"]


def windows(x: Samples, margins: tuple[int, int], size: tuple[int, int], draws: Draws) -> Samples:
    """The part of `size` of each image at a place drawn uniformly; two draws a sample: top, then left."""
    top, left = (draws.integers(margin + 1) for margin in margins)
    if isinstance(x, np.ndarray):
        places = sliding_window_view(x, size, axis=(2, 3))  # (n, c, down + 1, across + 1, height, width)
        return places[np.arange(len(x)), :, top, left]
    rows, columns = (start[:, None] + np.arange(extent) for start, extent in zip((top, left), size, strict=True))
    return along(along(x, rows, 2), columns, 3)


@dataclass(frozen=True)
class _Flip(ImageTransform):
    """Base of the flips: reverse an axis with probability p."""

    axis: ClassVar[int]

    p: float = 0.0

    def problems(self) -> Iterator[str]:
        """A probability out of range."""
        yield from collect(check_number("p", self.p, above=0, at_most=1))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """One draw a sample."""
        self.output_shape(x.shape[1:])
        chosen = draws.uniform(1)[:, 0] < self.p
        if not chosen.any():
            return x
        if chosen.all():
            return copied(flipped(x, self.axis))
        found, at = copied(x), like(x, np.flatnonzero(chosen))
        found[at] = flipped(x[at], self.axis)
        return found


class HorizontalFlip(_Flip):
    """Exchange left and right, with probability p."""

    message = "Transform.HorizontalFlip"
    axis = -1


class VerticalFlip(_Flip):
    """Exchange top and bottom, with probability p."""

    message = "Transform.VerticalFlip"
    axis = -2


@dataclass(frozen=True)
class _Crop(Transform):
    """Base of the crops: keep `height` x `width` pixels."""

    height: int = 0
    width: int = 0

    def problems(self) -> Iterator[str]:
        """A crop without pixels."""
        yield from collect(check_integer("height", self.height, 1), check_integer("width", self.width, 1))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(channels, height, width) of the crop."""
        channels, height, width = image_shape(self, shape)
        if self.height > height != -1 or self.width > width != -1:
            raise ConfigurationError(
                f"transform {type(self).__name__} cuts {self.height} x {self.width} out of images of {height} x {width}"
            )
        return channels, self.height, self.width

    def margins(self, x: Samples) -> tuple[int, int]:
        """By how much the image exceeds the crop, in height and in width."""
        _, height, width = self.output_shape(tuple(x.shape[1:]))
        return x.shape[2] - height, x.shape[3] - width


class CenterCrop(_Crop):
    """Keep the middle `height` x `width` pixels; an odd rest is cut at the bottom and the right."""

    message = "Transform.CenterCrop"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The same position in each sample."""
        top, left = (margin // 2 for margin in self.margins(x))
        return x[:, :, top : top + self.height, left : left + self.width]


class RandomCrop(_Crop):
    """Keep `height` x `width` pixels at a position drawn uniformly."""

    message = "Transform.RandomCrop"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a sample: top, then left."""
        return windows(x, self.margins(x), (self.height, self.width), draws)


@dataclass(frozen=True)
class Pad(Transform):
    """Surround the image with `pad` pixels of value 0 on each side."""

    message = "Transform.Pad"
    pad: int = 0

    def problems(self) -> Iterator[str]:
        """A pad that adds nothing."""
        yield from collect(check_integer("pad", self.pad, 1))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(channels, height + 2 pad, width + 2 pad)."""
        channels, height, width = image_shape(self, shape)
        return channels, *(size + 2 * self.pad if size != -1 else -1 for size in (height, width))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Zeros on all four sides."""
        self.output_shape(x.shape[1:])
        return surrounded(x, self.pad)


@dataclass(frozen=True)
class Cutout(ImageTransform):
    """Set `num_holes` squares of `length` pixels, centred anywhere in the image, to 0.

    A square may extend beyond the edge. Source: DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552
    """

    message = "Transform.Cutout"
    num_holes: int = 0
    length: int = 0

    def problems(self) -> Iterator[str]:
        """No holes, or holes without pixels."""
        yield from collect(check_integer("num_holes", self.num_holes, 1), check_integer("length", self.length, 1))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a hole: row, then column of its centre."""
        _, height, width = self.output_shape(tuple(x.shape[1:]))
        for _ in range(self.num_holes):
            rows = self._covers(draws.integers(height), height)
            columns = self._covers(draws.integers(width), width)
            x = replaced(x, like(x, (rows[:, :, None] & columns[:, None, :])[:, None]), 0)
        return x

    def _covers(self, centre: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
        start = centre[:, None] - self.length // 2
        at = np.arange(size)
        return (at >= start) & (at < start + self.length)
