"""What happens to the samples between the file and the network, in the order in which it is listed.

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
NOT_BUILT = "it is known and not built yet"
# ITU-R BT.601: the share of red, green and blue in the brightness that the eye sees.
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
            if isinstance(value, (int, float)):  # what is none is reported by `descend.data.check`
                object.__setattr__(self, name, float(np.float32(value)))

    def problems(self) -> Iterator[str]:
        """What is wrong with the fields alone, whatever the samples are."""
        if type(self).apply is Transform.apply:
            yield f"{NOT_BUILT}; these are: {', '.join(_built())}"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Transform a batch of samples.

        Args:
            x: (n, *shape), n may be 0. Not changed.
            draws: Random numbers, a row for each sample.

        Returns:
            (n, *new shape), which depends on the shape of `x` alone.

        Raises:
            ConfigurationError: samples of this shape cannot be transformed so.
            Unsupported: this transform is known and not built yet.
        """
        raise Unsupported(f"transform {type(self).__name__}: {NOT_BUILT}")

    def _floats(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self) if isinstance(f.default, float)]


def _built() -> list[str]:
    return [kind.__name__ for kind in TRANSFORMS if kind.apply is not Transform.apply]


def _image(kind: Transform, x: Samples) -> tuple[int, int, int]:
    if x.ndim != 4:
        raise ConfigurationError(
            f"transform {type(kind).__name__} needs images (channels, height, width) and the samples are {x.shape[1:]}"
        )
    return x.shape[1], x.shape[2], x.shape[3]


# Values


@dataclass(frozen=True)
class Scale(Transform):
    """x ← scale · x."""

    message = "Transform.Scale"
    scale: float = 0.0

    def problems(self) -> Iterator[str]:
        """A scale that was left out is zero."""
        if self.scale == 0:
            yield "scale is 0 or was left out, so that every sample would be zero; 0.003921569 brings pixels to [0, 1]"
        elif not math.isfinite(self.scale):
            yield f"scale is {self.scale} and is to be a finite number"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Multiply in float32."""
        return x * np.float32(self.scale)


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def _normalize_problems(means: str, stddevs: str) -> Iterator[str]:
    try:
        m, s = _numbers(means), _numbers(stddevs)
    except ValueError as error:
        yield f"means='{means}' and stddevs='{stddevs}' are to be numbers with spaces between them: {error}"
        return
    if not m or len(m) != len(s):
        yield f"it has {len(m)} means and {len(s)} stddevs; both need one number, or one for each channel"
    if not all(math.isfinite(v) for v in m) or not all(math.isfinite(v) and v > 0 for v in s):
        yield f"means='{means}' are to be finite and stddevs='{stddevs}' greater than zero"


def _normalize(kind: Transform, x: Samples, means: str, stddevs: str) -> Samples:
    m, s = (np.array(_numbers(text), dtype=np.float32) for text in (means, stddevs))
    channels = x.shape[1] if x.ndim > 1 else 1
    if m.size not in (1, channels):
        raise ConfigurationError(
            f"transform {type(kind).__name__} has {m.size} means and the samples are {x.shape[1:]}: "
            f"give 1 or {channels} of them"
        )
    column = (-1, *(1,) * (x.ndim - 2))
    return (x - m.reshape(column)) / s.reshape(column)


@dataclass(frozen=True)
class Normalize(Transform):
    """x ← (x − mean) / stddev, with one pair for all channels or one for each.

    The two are texts of numbers with spaces between them, as in "0.485 0.456 0.406".
    """

    message = "Transform.Normalize"
    means: str = ""
    stddevs: str = ""

    def problems(self) -> Iterator[str]:
        """Texts that are not numbers, or not as many of one as of the other."""
        return _normalize_problems(self.means, self.stddevs)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The first axis of a sample is its channels."""
        return _normalize(self, x, self.means, self.stddevs)


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
    """x ← x / 255; the layout (channels, height, width) is the one that samples have here from the beginning."""

    message = "Transform.ToLBANNLayout"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Multiply by the float32 nearest to 1/255."""
        return x * (np.float32(1) / WHITE)


@dataclass(frozen=True)
class NormalizeToLBANNLayout(Transform):
    """x ← (x / 255 − mean) / stddev, with one pair for all channels or one for each."""

    message = "Transform.NormalizeToLBANNLayout"
    means: str = ""
    stddevs: str = ""

    def problems(self) -> Iterator[str]:
        """Texts that are not numbers, or not as many of one as of the other."""
        return _normalize_problems(self.means, self.stddevs)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """`ToLBANNLayout`, then `Normalize`."""
        return _normalize(self, x * (np.float32(1) / WHITE), self.means, self.stddevs)


# Place


def _flip(x: Samples, axis: int, p: float, draws: Draws) -> Samples:
    flipped = draws.uniform(1)[:, 0] < p
    return np.where(flipped.reshape(-1, 1, 1, 1), np.flip(x, axis), x)


def _probability_problems(p: float) -> Iterator[str]:
    if not 0 < p <= 1:
        yield f"p is {p:g} and is to be a probability above 0 and up to 1"


@dataclass(frozen=True)
class HorizontalFlip(Transform):
    """Exchange left and right, with probability p."""

    message = "Transform.HorizontalFlip"
    p: float = 0.0

    def problems(self) -> Iterator[str]:
        """A probability out of range."""
        return _probability_problems(self.p)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """One draw a sample."""
        _image(self, x)
        return _flip(x, -1, self.p, draws)


@dataclass(frozen=True)
class VerticalFlip(Transform):
    """Exchange top and bottom, with probability p."""

    message = "Transform.VerticalFlip"
    p: float = 0.0

    def problems(self) -> Iterator[str]:
        """A probability out of range."""
        return _probability_problems(self.p)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """One draw a sample."""
        _image(self, x)
        return _flip(x, -2, self.p, draws)


def _crop_room(kind: CenterCrop | RandomCrop, x: Samples) -> tuple[int, int]:
    """By how much the image exceeds the crop, in height and in width."""
    _, height, width = _image(kind, x)
    if kind.height > height or kind.width > width:
        raise ConfigurationError(
            f"transform {type(kind).__name__} cuts {kind.height} x {kind.width} out of images of {height} x {width}"
        )
    return height - kind.height, width - kind.width


def _size_problems(kind: CenterCrop | RandomCrop) -> Iterator[str]:
    if kind.height < 1 or kind.width < 1:
        yield f"height is {kind.height} and width is {kind.width}; both are to be 1 or more"


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Keep the middle `height` x `width` pixels; an odd rest is cut at the bottom and the right."""

    message = "Transform.CenterCrop"
    height: int = 0
    width: int = 0

    def problems(self) -> Iterator[str]:
        """A crop without pixels."""
        return _size_problems(self)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The same place in each sample."""
        top, left = (room // 2 for room in _crop_room(self, x))
        return x[:, :, top : top + self.height, left : left + self.width]


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Keep `height` x `width` pixels at a random place, each place as likely as any other."""

    message = "Transform.RandomCrop"
    height: int = 0
    width: int = 0

    def problems(self) -> Iterator[str]:
        """A crop without pixels."""
        return _size_problems(self)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a sample: top, then left."""
        down, across = _crop_room(self, x)
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
        if self.pad < 1:
            yield f"pad is {self.pad} and is to be 1 or more"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The new sides are height + 2 pad and width + 2 pad."""
        _image(self, x)
        sides = (self.pad, self.pad)
        return np.pad(x, ((0, 0), (0, 0), sides, sides))


@dataclass(frozen=True)
class Cutout(Transform):
    """Set `num_holes` squares of `length` pixels, centred anywhere in the image, to 0.

    A square may hang over the edge. Source: DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552
    """

    message = "Transform.Cutout"
    num_holes: int = 0
    length: int = 0

    def problems(self) -> Iterator[str]:
        """Holes that are not there."""
        if self.num_holes < 1 or self.length < 1:
            yield f"num_holes is {self.num_holes} and length is {self.length}; both are to be 1 or more"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a hole: row, then column of its centre."""
        _, height, width = _image(self, x)
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


def _colours(kind: Transform, x: Samples) -> int:
    channels = _image(kind, x)[0]
    if channels not in (1, 3):
        raise ConfigurationError(f"transform {type(kind).__name__} needs images of 1 or 3 channels, not of {channels}")
    return channels


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


def _factor_problems(factor: float) -> Iterator[str]:
    if not 0 <= factor < math.inf:
        yield f"factor is {factor:g} and is to be 0 or more"


@dataclass(frozen=True)
class Colorize(Transform):
    """Make three equal channels of one; an image of three stays as it is."""

    message = "Transform.Colorize"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Repeat the channel."""
        return np.repeat(x, 3, axis=1) if _colours(self, x) == 1 else x


@dataclass(frozen=True)
class Grayscale(Transform):
    """Make one channel of three, 0.299 red + 0.587 green + 0.114 blue; an image of one stays as it is."""

    message = "Transform.Grayscale"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """The weighted sum."""
        _colours(self, x)
        return _gray(x)


@dataclass(frozen=True)
class AdjustBrightness(Transform):
    """x ← factor · x: 0 is black, 1 changes nothing."""

    message = "Transform.AdjustBrightness"
    needs_pixels = True
    factor: float = 0.0

    def problems(self) -> Iterator[str]:
        """A negative factor."""
        return _factor_problems(self.factor)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Clipped to 0 ... 255."""
        _colours(self, x)
        return _brightness(x, np.full((1, 1, 1, 1), self.factor, dtype=np.float32))


@dataclass(frozen=True)
class AdjustContrast(Transform):
    """x ← factor · x + (1 − factor) · mean brightness of the image: 0 is plain gray, 1 changes nothing."""

    message = "Transform.AdjustContrast"
    needs_pixels = True
    factor: float = 0.0

    def problems(self) -> Iterator[str]:
        """A negative factor."""
        return _factor_problems(self.factor)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Clipped to 0 ... 255."""
        _colours(self, x)
        return _contrast(x, np.full((1, 1, 1, 1), self.factor, dtype=np.float32))


@dataclass(frozen=True)
class AdjustSaturation(Transform):
    """x ← factor · x + (1 − factor) · brightness of the pixel: 0 is black and white, 1 changes nothing."""

    message = "Transform.AdjustSaturation"
    needs_pixels = True
    factor: float = 0.0

    def problems(self) -> Iterator[str]:
        """A negative factor."""
        return _factor_problems(self.factor)

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Clipped to 0 ... 255."""
        _colours(self, x)
        return _saturation(x, np.full((1, 1, 1, 1), self.factor, dtype=np.float32))


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Adjust brightness, contrast and saturation, in random order, by factors that are uniform between min and max.

    An adjustment whose two factors are 0, as they are when left out, is not made.
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
        for name in ("brightness", "contrast", "saturation"):
            low, high = self._range(name)
            if not 0 <= low <= high < math.inf:
                yield f"the {name} factors go from {low:g} to {high:g}; 0 <= min <= max is needed"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Four draws a sample: three factors, then one of the six orders."""
        _colours(self, x)
        adjustments = {"brightness": _brightness, "contrast": _contrast, "saturation": _saturation}
        u = draws.uniform(3).astype(np.float32)
        which = draws.integers(6)
        x = x.copy()
        for number, sequence in enumerate(itertools.permutations(enumerate(adjustments))):
            chosen = which == number
            for column, name in sequence:
                low, high = self._range(name)
                if high > 0 and chosen.any():
                    factor = low + (high - low) * u[chosen, column]
                    x[chosen] = adjustments[name](x[chosen], factor.reshape(-1, 1, 1, 1).astype(np.float32))
        return x

    def _range(self, name: str) -> tuple[float, float]:
        return getattr(self, f"min_{name}_factor"), getattr(self, f"max_{name}_factor")


# Known by name, not built yet


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
