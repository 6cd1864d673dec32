"""Transforms of values: scaling, normalization, layout. Their results are float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from descend.arguments import check_number, collect
from descend.data.transforms.arrays import converted, floats_of, like, replaced
from descend.data.transforms.base import Samples, Transform
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data.counter_rng import Draws

__all__ = ["RESCALES", "Normalize", "NormalizeToLBANNLayout", "SampleNormalize", "Scale", "ToLBANNLayout"]

ONE_BY_WHITE = float(np.float32(1) / np.float32(255))


@dataclass(frozen=True)
class Scale(Transform):
    """x ← scale · x."""

    message = "Transform.Scale"
    scale: float = 0.0

    def problems(self) -> Iterator[str]:
        """A scale of 0, the value of an unset field, or one that is not finite."""
        if self.scale == 0:
            yield "scale is 0 or not set, so every sample would be zero; 0.003921569 brings pixels to [0, 1]"
        yield from collect(check_number("scale", self.scale))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Multiply in float32."""
        found = floats_of(x)
        found *= float(np.float32(self.scale))
        return found


@dataclass(frozen=True)
class _MeanAndStandardDeviation(Transform):
    """Base of transforms with a mean and a standard deviation for all channels, or for each of them."""

    means: str = ""
    stddevs: str = ""

    def problems(self) -> Iterator[str]:
        """Strings that are not numbers, or a different number of means and standard deviations."""
        try:
            m, s = _numbers(self.means), _numbers(self.stddevs)
        except ValueError as error:
            yield f"means='{self.means}' and stddevs='{self.stddevs}' must be numbers separated by spaces: {error}"
            return
        if not m or len(m) != len(s):
            yield f"it has {len(m)} means and {len(s)} stddevs; both need one number, or one for each channel"
        if not all(math.isfinite(v) for v in m) or not all(math.isfinite(v) and v > 0 for v in s):
            yield f"means='{self.means}' must be finite numbers and stddevs='{self.stddevs}' finite numbers > 0"

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses samples with another number of channels."""
        count, channels = len(_numbers(self.means)), shape[0] if shape else 1
        if count not in (1, channels) and channels != -1:
            raise ConfigurationError(
                f"transform {type(self).__name__} has {count} means and the samples are {shape}: "
                f"give 1 or {channels} of them"
            )
        return shape

    def _normalize(self, x: Samples, scale: float | None = None) -> Samples:
        self.output_shape(x.shape[1:])
        column = (-1, *(1,) * (x.ndim - 2))
        numbers = (np.array(_numbers(text), dtype=np.float32).reshape(column) for text in (self.means, self.stddevs))
        m, s = (like(x, number) for number in numbers)
        found = floats_of(x)
        if scale is not None:
            found *= scale
        found -= m
        found /= s
        return found


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


class Normalize(_MeanAndStandardDeviation):
    """x ← (x − mean) / stddev, with one pair for all channels or one for each.

    The two are strings of numbers separated by spaces, as in "0.485 0.456 0.406".
    """

    message = "Transform.Normalize"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The first axis of a sample is its channels."""
        return self._normalize(x)


@dataclass(frozen=True)
class SampleNormalize(Transform):
    """Give each sample mean 0 and standard deviation 1 over all its elements; a constant sample becomes 0."""

    message = "Transform.SampleNormalize"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The standard deviation is that of the population (divided by the number of elements)."""
        rows = converted(x, "float32").reshape(len(x), math.prod(x.shape[1:]))
        centred = rows - rows.mean(axis=1, keepdims=True)
        std = (centred * centred).mean(axis=1, keepdims=True) ** 0.5
        return (centred / replaced(std, std == 0, 1)).reshape(x.shape)


@dataclass(frozen=True)
class ToLBANNLayout(Transform):
    """x ← x / 255; samples have the layout (channels, height, width) from the beginning."""

    message = "Transform.ToLBANNLayout"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Multiply by the float32 nearest to 1/255."""
        found = floats_of(x)
        found *= ONE_BY_WHITE
        return found


class NormalizeToLBANNLayout(_MeanAndStandardDeviation):
    """x ← (x / 255 − mean) / stddev, with one pair for all channels or one for each."""

    message = "Transform.NormalizeToLBANNLayout"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """`ToLBANNLayout`, then `Normalize`."""
        return self._normalize(x, ONE_BY_WHITE)


# After one of these the values of a sample are no pixels of 0 to 255.
RESCALES = (Scale, Normalize, SampleNormalize, ToLBANNLayout, NormalizeToLBANNLayout)
