"""Transforms of values, to float32: scaling, normalization, layout; and of colours: channels, brightness, contrast."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from descend.arguments import check_number, collect
from descend.data.transforms.base import (
    ImageTransform,
    Samples,
    Transform,
    converted,
    copied,
    floats_of,
    image_shape,
    is_pixels,
    like,
    pixels_of,
    replaced,
)
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data.order import Draws

__all__ = [
    "RESCALES",
    "AdjustBrightness",
    "AdjustContrast",
    "AdjustSaturation",
    "ColorJitter",
    "Colorize",
    "Grayscale",
    "Normalize",
    "NormalizeToLBANNLayout",
    "SampleNormalize",
    "Scale",
    "ToLBANNLayout",
]

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


# ---- transforms of colour: channels, brightness, contrast, saturation

# ITU-R BT.601: the weights of red, green and blue in the luma of a pixel; below as multiples of 2⁻¹⁵.
LUMA = tuple(float(np.float32(weight)) for weight in (0.299, 0.587, 0.114))
LUMA_BITS = (9798, 19235, 3735)


class _ColorTransform(ImageTransform):
    """Base of transforms of images with one channel (gray) or three (red, green, blue)."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses images of another number of channels."""
        if image_shape(self, shape)[0] not in (1, 3, -1):
            raise ConfigurationError(
                f"transform {type(self).__name__} needs images of 1 or 3 channels, not of {shape[0]}"
            )
        return shape


def _gray(x: Samples) -> Samples:
    """The luma of each pixel: of bytes as OpenCV computes it, in integers, else in float32."""
    if x.shape[1] == 1:
        return x
    red, green, blue = (x[:, channel : channel + 1] for channel in range(3))
    if is_pixels(x):
        red, green, blue = (converted(channel, "int32") for channel in (red, green, blue))
        total = LUMA_BITS[0] * red + LUMA_BITS[1] * green + LUMA_BITS[2] * blue
        return converted((total + 2**14) >> 15, "uint8")
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _as(x: Samples, values: Samples) -> Samples:
    """Computed values as the samples are: bytes, or numbers from 0 to 255."""
    return pixels_of(values) if is_pixels(x) else values.clip(0, 255)


def _blend(x: Samples, y: Samples, factor: Samples) -> Samples:
    return _as(x, factor * converted(x, "float32") + (1 - factor) * converted(y, "float32"))


def _brightness(x: Samples, factor: Samples) -> Samples:
    return _as(x, factor * converted(x, "float32"))


def _contrast(x: Samples, factor: Samples) -> Samples:
    gray = _gray(x)
    # The sum of bytes is exact in float64 in any order, so arrays and tensors have the same mean.
    rows = converted(gray, "float64").reshape(len(x), gray.shape[1] * gray.shape[2] * gray.shape[3])
    mean = converted(rows.sum(axis=1) / rows.shape[1], "float32")
    return _blend(x, mean.reshape(-1, 1, 1, 1), factor)


def _saturation(x: Samples, factor: Samples) -> Samples:
    return _blend(x, _gray(x), factor)


ADJUSTMENTS = {"brightness": _brightness, "contrast": _contrast, "saturation": _saturation}


class Colorize(_ColorTransform):
    """Make three equal channels of one; an image of three stays as it is."""

    message = "Transform.Colorize"

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(3, height, width)."""
        return (3, *super().output_shape(shape)[1:])

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Repeat the channel."""
        self.output_shape(x.shape[1:])
        return x[:, [0, 0, 0]] if x.shape[1] == 1 else x


class Grayscale(_ColorTransform):
    """Make one channel of three, 0.299 red + 0.587 green + 0.114 blue; an image of one stays as it is."""

    message = "Transform.Grayscale"

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(1, height, width)."""
        return (1, *super().output_shape(shape)[1:])

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The weighted sum."""
        self.output_shape(x.shape[1:])
        return _gray(x)


@dataclass(frozen=True)
class _Adjustment(_ColorTransform):
    """Base of the adjustments of one property of an image by a factor that is the same for all samples."""

    needs_pixels = True
    adjusted: ClassVar[str]

    factor: float = 0.0

    def problems(self) -> Iterator[str]:
        """A negative factor."""
        yield from collect(check_number("factor", self.factor, at_least=0))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Clipped to 0 ... 255."""
        self.output_shape(x.shape[1:])
        return ADJUSTMENTS[self.adjusted](x, like(x, np.full((1, 1, 1, 1), self.factor, dtype=np.float32)))


class AdjustBrightness(_Adjustment):
    """x ← factor · x: 0 is black, 1 changes nothing."""

    message = "Transform.AdjustBrightness"
    adjusted = "brightness"


class AdjustContrast(_Adjustment):
    """x ← factor · x + (1 − factor) · mean brightness of the image: 0 is plain gray, 1 changes nothing."""

    message = "Transform.AdjustContrast"
    adjusted = "contrast"


class AdjustSaturation(_Adjustment):
    """x ← factor · x + (1 − factor) · brightness of the pixel: 0 is black and white, 1 changes nothing."""

    message = "Transform.AdjustSaturation"
    adjusted = "saturation"


@dataclass(frozen=True)
class ColorJitter(_ColorTransform):
    """Adjust brightness, contrast and saturation, in random order, by factors that are uniform between min and max.

    An adjustment whose two factors are 0, the value of unset fields, is not made.
    """

    message = "Transform.ColorJitter"
    needs_pixels = True
    min_brightness_factor: float = 0.0
    max_brightness_factor: float = 0.0
    min_contrast_factor: float = 0.0
    max_contrast_factor: float = 0.0
    min_saturation_factor: float = 0.0
    max_saturation_factor: float = 0.0

    def problems(self) -> Iterator[str]:
        """A range that is negative or upside down."""
        for name in ADJUSTMENTS:
            low, high = self._range(name)
            if not 0 <= low <= high < math.inf:
                yield f"the {name} factors must satisfy 0 <= min <= max, got {low:g} and {high:g}"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Four draws a sample: three factors, then one of the six orders."""
        self.output_shape(x.shape[1:])
        u = draws.uniform(3).astype(np.float32)
        which = draws.integers(6)
        x = copied(x)
        for number, sequence in enumerate(itertools.permutations(enumerate(ADJUSTMENTS))):
            chosen = which == number
            for column, name in sequence:
                low, high = self._range(name)
                if high > 0 and chosen.any():
                    factor = (low + (high - low) * u[chosen, column]).reshape(-1, 1, 1, 1).astype(np.float32)
                    at = like(x, np.flatnonzero(chosen))
                    x[at] = ADJUSTMENTS[name](x[at], like(x, factor))
        return x

    def _range(self, name: str) -> tuple[float, float]:
        return getattr(self, f"min_{name}_factor"), getattr(self, f"max_{name}_factor")
