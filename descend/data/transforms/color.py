"""Transforms of colour: channels, brightness, contrast, saturation."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from descend.arguments import check_number, collect
from descend.data.transforms.arrays import converted, copied, is_pixels, like, pixels_of
from descend.data.transforms.base import ImageTransform, Samples, image_shape
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data.counter_rng import Draws

__all__ = ["AdjustBrightness", "AdjustContrast", "AdjustSaturation", "ColorJitter", "Colorize", "Grayscale"]

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
