"""Preprocessing and augmentation of samples, applied in the order listed.

A transform is a value (its fields are those of LBANN's message) with one method on a whole batch. Images are float32
arrays (n, channels, height, width) with pixels 0 to 255 and channels red, green, blue, until a transform scales them.
Random transforms draw from `Draws`, so what a sample gets depends on (seed, epoch, sample) and on nothing else.

LBANN works on 8-bit images and rounds after each transform; here values stay floats and are clipped to 0 ... 255 where
LBANN clips.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from descend.arguments import check_integer, check_number, collect
from descend.errors import ConfigurationError, Unsupported
from descend.strict_keywords import StrictKeywords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.data.counter_rng import Draws

    Samples = NDArray[np.floating[Any]]  # float32 throughout; NumPy's stubs lose the width in a product

__all__ = [
    "TRANSFORMS",
    "AdjustBrightness",
    "AdjustContrast",
    "AdjustSaturation",
    "CenterCrop",
    "ColorJitter",
    "Colorize",
    "Cutout",
    "Grayscale",
    "HorizontalFlip",
    "Normalize",
    "NormalizeToLBANNLayout",
    "Pad",
    "RandomAffine",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomResizedCropWithFixedAspectRatio",
    "Resize",
    "ResizedCenterCrop",
    "SampleNormalize",
    "Scale",
    "ToLBANNLayout",
    "Transform",
    "VerticalFlip",
]

WHITE = np.float32(255)
NOT_BUILT = "it is known and not implemented"
# ITU-R BT.601: the weights of red, green and blue in the luma of a pixel.
LUMA = (np.float32(0.299), np.float32(0.587), np.float32(0.114))


@dataclass(frozen=True)
class Transform(metaclass=StrictKeywords):
    """Base of all transforms.

    Numbers are kept as the float32 values that the text form holds, so a transform that was written in Python and one
    that was read back from a text give the same bits.
    """

    message: ClassVar[str]
    needs_pixels: ClassVar[bool] = False  # whether it relies on values of 0 ... 255

    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, value in self._floats():
            if isinstance(value, (int, float)):  # values of other types are reported by `descend.data.check`
                object.__setattr__(self, name, float(np.float32(value)))

    def problems(self) -> Iterator[str]:
        """Problems with the fields alone, for samples of any shape."""
        if type(self).apply is Transform.apply:
            yield f"{NOT_BUILT}; these are: {', '.join(_built())}"

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a transformed sample; the same shape unless a transform says otherwise. Allocates nothing.

        Args:
            shape: Of a sample before the transform, without the batch dimension.

        Raises:
            ConfigurationError: samples of this shape cannot be transformed.
            Unsupported: this transform is known and not implemented.
        """
        if type(self).apply is Transform.apply:
            raise Unsupported(f"transform {type(self).__name__}: {NOT_BUILT}")
        return shape

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Transform a batch of samples.

        Args:
            x: (n, *shape), n may be 0. Not changed.
            draws: Random numbers, a row for each sample.

        Returns:
            (n, *output_shape(shape)) float32.

        Raises:
            ConfigurationError: samples of this shape cannot be transformed.
            Unsupported: this transform is known and not implemented.
        """
        raise Unsupported(f"transform {type(self).__name__}: {NOT_BUILT}")

    def _floats(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self) if isinstance(f.default, float)]


def _built() -> list[str]:
    return [kind.__name__ for kind in TRANSFORMS if kind.apply is not Transform.apply]


class _ImageTransform(Transform):
    """Base of transforms of images, that is samples (channels, height, width)."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses samples that are no images."""
        _image(self, shape)
        return shape


def _image(transform: Transform, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ConfigurationError(
            f"transform {type(transform).__name__} needs images (channels, height, width), got samples {shape}"
        )
    return shape[0], shape[1], shape[2]


# Values


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
        return x * np.float32(self.scale)


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
        if count not in (1, channels):
            raise ConfigurationError(
                f"transform {type(self).__name__} has {count} means and the samples are {shape}: "
                f"give 1 or {channels} of them"
            )
        return shape

    def _normalize(self, x: Samples) -> Samples:
        self.output_shape(x.shape[1:])
        m, s = (np.array(_numbers(text), dtype=np.float32) for text in (self.means, self.stddevs))
        column = (-1, *(1,) * (x.ndim - 2))
        return (x - m.reshape(column)) / s.reshape(column)


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
        axes = tuple(range(1, x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True)
        std = centred.std(axis=axes, keepdims=True)
        return centred / np.where(std > 0, std, np.float32(1))


@dataclass(frozen=True)
class ToLBANNLayout(Transform):
    """x ← x / 255; samples have the layout (channels, height, width) from the beginning."""

    message = "Transform.ToLBANNLayout"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Multiply by the float32 nearest to 1/255."""
        return x * (np.float32(1) / WHITE)


class NormalizeToLBANNLayout(_MeanAndStandardDeviation):
    """x ← (x / 255 − mean) / stddev, with one pair for all channels or one for each."""

    message = "Transform.NormalizeToLBANNLayout"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """`ToLBANNLayout`, then `Normalize`."""
        return self._normalize(x * (np.float32(1) / WHITE))


# Geometry


@dataclass(frozen=True)
class _Flip(_ImageTransform):
    """Base of the flips: reverse an axis with probability p."""

    axis: ClassVar[int]

    p: float = 0.0

    def problems(self) -> Iterator[str]:
        """A probability out of range."""
        yield from collect(check_number("p", self.p, above=0, at_most=1))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """One draw a sample."""
        self.output_shape(x.shape[1:])
        flipped = draws.uniform(1)[:, 0] < self.p
        return np.where(flipped.reshape(-1, 1, 1, 1), np.flip(x, self.axis), x)


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
        channels, height, width = _image(self, shape)
        if self.height > height or self.width > width:
            raise ConfigurationError(
                f"transform {type(self).__name__} cuts {self.height} x {self.width} out of images of {height} x {width}"
            )
        return channels, self.height, self.width

    def _margins(self, x: Samples) -> tuple[int, int]:
        """By how much the image exceeds the crop, in height and in width."""
        _, height, width = self.output_shape(x.shape[1:])
        return x.shape[2] - height, x.shape[3] - width


class CenterCrop(_Crop):
    """Keep the middle `height` x `width` pixels; an odd rest is cut at the bottom and the right."""

    message = "Transform.CenterCrop"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The same position in each sample."""
        top, left = (margin // 2 for margin in self._margins(x))
        return x[:, :, top : top + self.height, left : left + self.width]


class RandomCrop(_Crop):
    """Keep `height` x `width` pixels at a position drawn uniformly."""

    message = "Transform.RandomCrop"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a sample: top, then left."""
        down, across = self._margins(x)
        top, left = draws.integers(down + 1), draws.integers(across + 1)
        windows = sliding_window_view(x, (self.height, self.width), axis=(2, 3))  # (n, c, down + 1, across + 1, h, w)
        return windows[np.arange(len(x)), :, top, left]


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
        channels, height, width = _image(self, shape)
        return channels, height + 2 * self.pad, width + 2 * self.pad

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Zeros on all four sides."""
        self.output_shape(x.shape[1:])
        sides = (self.pad, self.pad)
        return np.pad(x, ((0, 0), (0, 0), sides, sides))


@dataclass(frozen=True)
class Cutout(_ImageTransform):
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
        _, height, width = self.output_shape(x.shape[1:])
        for _ in range(self.num_holes):
            rows = self._covers(draws.integers(height), height)
            columns = self._covers(draws.integers(width), width)
            x = np.where((rows[:, :, None] & columns[:, None, :])[:, None], np.float32(0), x)
        return x

    def _covers(self, centre: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
        start = centre[:, None] - self.length // 2
        at = np.arange(size)
        return (at >= start) & (at < start + self.length)


# Colour


class _ColorTransform(Transform):
    """Base of transforms of images with one channel (gray) or three (red, green, blue)."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses images of another number of channels."""
        if _image(self, shape)[0] not in (1, 3):
            raise ConfigurationError(
                f"transform {type(self).__name__} needs images of 1 or 3 channels, not of {shape[0]}"
            )
        return shape


def _gray(x: Samples) -> Samples:
    if x.shape[1] == 1:
        return x
    red, green, blue = (x[:, channel : channel + 1] for channel in range(3))
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _blend(x: Samples, y: Samples, factor: Samples) -> Samples:
    return np.clip(factor * x + (1 - factor) * y, 0, WHITE)


def _brightness(x: Samples, factor: Samples) -> Samples:
    return np.clip(factor * x, 0, WHITE)


def _contrast(x: Samples, factor: Samples) -> Samples:
    return _blend(x, _gray(x).mean(axis=(1, 2, 3), keepdims=True), factor)


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
        return np.repeat(x, 3, axis=1) if x.shape[1] == 1 else x


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
        return ADJUSTMENTS[self.adjusted](x, np.full((1, 1, 1, 1), self.factor, dtype=np.float32))


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
        x = x.copy()
        for number, sequence in enumerate(itertools.permutations(enumerate(ADJUSTMENTS))):
            chosen = which == number
            for column, name in sequence:
                low, high = self._range(name)
                if high > 0 and chosen.any():
                    factor = low + (high - low) * u[chosen, column]
                    x[chosen] = ADJUSTMENTS[name](x[chosen], factor.reshape(-1, 1, 1, 1).astype(np.float32))
        return x

    def _range(self, name: str) -> tuple[float, float]:
        return getattr(self, f"min_{name}_factor"), getattr(self, f"max_{name}_factor")


# Known by name, not implemented


@dataclass(frozen=True)
class Resize(Transform):
    """Bring the image to height x width."""

    message = "Transform.Resize"
    height: int = 0
    width: int = 0


@dataclass(frozen=True)
class ResizedCenterCrop(Transform):
    """Resize, then keep the middle."""

    message = "Transform.ResizedCenterCrop"
    height: int = 0
    width: int = 0
    crop_height: int = 0
    crop_width: int = 0


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Keep a random part of random size and aspect ratio, and resize it."""

    message = "Transform.RandomResizedCrop"
    height: int = 0
    width: int = 0
    scale_min: float = 0.0
    scale_max: float = 0.0
    ar_min: float = 0.0
    ar_max: float = 0.0


@dataclass(frozen=True)
class RandomResizedCropWithFixedAspectRatio(Transform):
    """Resize, then keep a random part."""

    message = "Transform.RandomResizedCropWithFixedAspectRatio"
    height: int = 0
    width: int = 0
    crop_height: int = 0
    crop_width: int = 0


@dataclass(frozen=True)
class RandomAffine(Transform):
    """Rotate, move, scale and shear at random."""

    message = "Transform.RandomAffine"
    rotate_min: float = 0.0
    rotate_max: float = 0.0
    translate_h: float = 0.0
    translate_w: float = 0.0
    scale_min: float = 0.0
    scale_max: float = 0.0
    shear_min: float = 0.0
    shear_max: float = 0.0


TRANSFORMS: tuple[type[Transform], ...] = (
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    CenterCrop,
    ColorJitter,
    Colorize,
    Cutout,
    Grayscale,
    HorizontalFlip,
    Normalize,
    NormalizeToLBANNLayout,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    RandomResizedCropWithFixedAspectRatio,
    Resize,
    ResizedCenterCrop,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
    VerticalFlip,
)
