"""Transforms that compute new pixels between the old ones: resizing, and affine maps.

The centre of output pixel i of m lies at (i + ½)·n/m − ½ of n input pixels, and the value there is interpolated
linearly between the two pixels around it; beyond the edge it is that of the edge pixel. Nothing is averaged when an
image becomes smaller. So does OpenCV's `resize`, which LBANN uses; of bytes the arithmetic is its own as well: weights
are multiples of 2⁻¹¹, and sums are integers.

Source: OpenCV 4, modules/imgproc, resize with INTER_LINEAR; warpAffine with INTER_LINEAR and a constant border.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from descend.arguments import check_integer, check_number, collect
from descend.data.transforms.base import (
    ImageTransform,
    Samples,
    Transform,
    along,
    converted,
    image_shape,
    is_pixels,
    like,
    pixels_of,
)
from descend.data.transforms.geometry import windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.data.order import Draws

__all__ = [
    "RandomAffine",
    "RandomResizedCrop",
    "RandomResizedCropWithFixedAspectRatio",
    "Resize",
    "ResizedCenterCrop",
    "resized",
]

ONE = 2**11  # of the weights of bytes
_LARGE = 2**14  # numbers of an image that is computed by itself
_PART_NUMBERS = 2**16  # of a channel of one that are computed at once: 256 kB as int32, an image of 224 x 224
_CHANNELS_AT_ONCE = 4  # bytes of an integer
ATTEMPTS = 10  # at a window that fits into the image


@dataclass(frozen=True)
class _Stretch:
    """What one axis of an output is interpolated from: (m,) for all samples, or (n, m).

    Args:
        low, high: Numbers of the two input pixels.
        weight: Of the second one, 0 to 1.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    weight: NDArray[np.float32]

    def of_sample(self, sample: int) -> _Stretch:
        """(m,) of one of the samples."""
        if self.low.ndim == 1:
            return self
        return _Stretch(self.low[sample], self.high[sample], self.weight[sample])


def _stretch(begin: NDArray[np.int64], extent: NDArray[np.int64], size: int) -> _Stretch:
    """`size` output pixels over the input pixels begin, ..., begin + extent − 1; both (n,) or ()."""
    begin, extent = begin[..., None], extent[..., None]
    # OpenCV computes the place in float64 and keeps its fraction in float32.
    at = (((np.arange(size) + 0.5) * (extent / size)) - 0.5).astype(np.float32)
    floor = np.floor(at)
    weight, low, last = at - floor, floor.astype(np.int64), extent - 1
    weight[(low < 0) | (low >= last)] = 0
    low = np.minimum(np.maximum(low, 0), last)
    return _Stretch(begin + low, begin + np.minimum(low + 1, last), weight)


def _shaped(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    rows = weight if weight.ndim == 2 else weight[None]
    return rows[:, None, :, None] if axis == 2 else rows[:, None, None, :]


def _interpolated(x: Samples, rows: _Stretch, columns: _Stretch) -> Samples:
    channels, height, width = x.shape[1], rows.low.shape[-1], columns.low.shape[-1]
    if not isinstance(x, np.ndarray) or not is_pixels(x) or channels * height * width < _LARGE:
        return _together(x, rows, columns)
    found = np.empty((len(x), channels, height, width), np.uint8)
    for sample, one in enumerate(found):
        _interpolate_bytes(x[sample], rows.of_sample(sample), columns.of_sample(sample), one)
    return found


def _interpolate_bytes(x: NDArray[np.uint8], rows: _Stretch, columns: _Stretch, found: NDArray[np.uint8]) -> None:
    """One large image, some rows at a time: memory for a whole one would come from the system each time.

    A pixel is gathered as one integer that has all its channels, which takes a fraction of the time of single bytes.
    Channels are then computed one after the other, so that they stay in a core's cache.
    """
    channels, height, width = found.shape
    top, left = int(rows.low[0]), int(columns.low[0])
    x = x[:, top : int(rows.high[-1]) + 1, left : int(columns.high[-1]) + 1]  # the pixels that are needed
    low, high = columns.low - left, columns.high - left
    down, across = _integer_weights(rows.weight)[:, None], _integer_weights(columns.weight)
    count = max(1, _PART_NUMBERS // width)
    for first in range(0, channels, _CHANNELS_AT_ONCE):
        planes = found[first : first + _CHANNELS_AT_ONCE]
        pixels = _pixels(x[first : first + _CHANNELS_AT_ONCE])
        for begin in range(0, height, count):
            part = slice(begin, begin + count)
            some, above, below = _rows_of(pixels, rows.low[part] - top, rows.high[part] - top)
            before, after = (some.take(at, 1).astype(np.int32, copy=False) for at in (low, high))
            for channel, plane in enumerate(planes):
                if channel:
                    before >>= 8
                    after >>= 8
                lines = _lines(before & 255, after & 255, across)
                plane[part] = _between(lines.take(above, 0), lines.take(below, 0), down[part])


def _pixels(x: NDArray[np.uint8]) -> NDArray[np.integer]:
    """The pixels of an image of up to four channels, (height, width), the first channel in the lowest bits."""
    if len(x) == 1:
        return x[0]
    owner = x.base
    if (
        isinstance(owner, np.ndarray)  # as decoders leave it where they are asked for four bytes a pixel
        and owner.dtype == np.uint8
        and owner.ndim == 3
        and owner.shape[2] == _CHANNELS_AT_ONCE
        and owner.flags.c_contiguous
        and x.strides == (1, *owner.strides[:2])
    ):
        top, rest = divmod(x.ctypes.data - owner.ctypes.data, owner.strides[0])
        if rest % _CHANNELS_AT_ONCE == 0:
            left = rest // _CHANNELS_AT_ONCE
            return owner.view("<i4")[top : top + x.shape[1], left : left + x.shape[2], 0]
    found = np.zeros((*x.shape[1:], _CHANNELS_AT_ONCE), np.uint8)
    for channel, plane in enumerate(x):
        found[..., channel] = plane
    return found.view("<i4")[..., 0]


def _rows_of(
    pixels: NDArray[np.integer], low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.int64], NDArray[np.int64]]:
    """Contiguous rows that have some of an image, and where they are in them."""
    top, bottom = int(low[0]), int(high[-1]) + 1
    if bottom - top <= 2 * len(low):
        return np.ascontiguousarray(pixels[top:bottom]), low - top, high - top
    needed, at = np.unique((low, high), return_inverse=True)  # a fraction of those of an image that is far larger
    above, below = at.reshape(2, -1)
    return pixels[needed], above, below


def _integer_weights(weight: NDArray[np.float32]) -> NDArray[np.int32]:
    return np.rint(weight * np.float32(ONE)).astype(np.int32)


def _lines(first: Samples, second: Samples, across: Samples) -> Samples:
    """Between two columns, times 128: of int32, both of which are overwritten."""
    second -= first
    second *= across
    first *= ONE
    first += second
    first >>= 4
    return first


def _between(above: Samples, below: Samples, down: Samples) -> Samples:
    """Between two rows of `_lines`, as numbers of 0 ... 255; both are overwritten.

    Both products are cut to multiples of 2¹⁶, as OpenCV does; without a carry the sum need not be cut again.
    """
    above *= ONE - down
    above &= -(2**16)
    below *= down
    above += below
    above += 2 * 2**16
    above >>= 18
    return above


def _together(x: Samples, rows: _Stretch, columns: _Stretch) -> Samples:
    if rows.low.size:  # the pixels that are needed
        top, left = int(rows.low.min()), int(columns.low.min())
        x = x[:, :, top : int(rows.high.max()) + 1, left : int(columns.high.max()) + 1]
        x = np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x
        rows = _Stretch(rows.low - top, rows.high - top, rows.weight)
        columns = _Stretch(columns.low - left, columns.high - left, columns.weight)
    weights = (_shaped(one.weight, axis) for one, axis in ((rows, 2), (columns, 3)))
    if is_pixels(x):
        down, across = (like(x, _integer_weights(weight)) for weight in weights)
        first, second = (converted(along(x, at, 3), "int32") for at in (columns.low, columns.high))
        lines = _lines(first, second, across)
        return converted(_between(along(lines, rows.low, 2), along(lines, rows.high, 2), down), "uint8")
    down, across = (like(x, weight) for weight in weights)
    first, second = (converted(along(x, at, 3), "float32") for at in (columns.low, columns.high))
    lines = first * (1 - across) + second * across
    return along(lines, rows.low, 2) * (1 - down) + along(lines, rows.high, 2) * down


def resized(x: Samples, height: int, width: int) -> Samples:
    """Images (n, channels, height, width) of another size."""
    if tuple(x.shape[2:]) == (height, width):
        return x
    start = np.zeros((), np.int64)
    rows, columns = (_stretch(start, np.array(old), new) for old, new in zip(x.shape[2:], (height, width), strict=True))
    return _interpolated(x, rows, columns)


@dataclass(frozen=True)
class _Resized(Transform):
    """Base of the transforms whose output has a size of its own."""

    height: int = 0
    width: int = 0

    def problems(self) -> Iterator[str]:
        """A size without pixels."""
        yield from collect(check_integer("height", self.height, 1), check_integer("width", self.width, 1))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(channels, height, width)."""
        return image_shape(self, shape)[0], self.height, self.width


class Resize(_Resized):
    """Bring the image to `height` x `width`, whatever its proportions."""

    message = "Transform.Resize"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Interpolated linearly."""
        self.output_shape(tuple(x.shape[1:]))
        return resized(x, self.height, self.width)


@dataclass(frozen=True)
class _ResizedCrop(_Resized):
    """Base of the transforms that resize and then keep a part."""

    crop_height: int = 0
    crop_width: int = 0

    def problems(self) -> Iterator[str]:
        """Sizes without pixels, or a part that is larger than the whole."""
        yield from super().problems()
        yield from collect(
            check_integer("crop_height", self.crop_height, 1), check_integer("crop_width", self.crop_width, 1)
        )
        if self.crop_height > self.height or self.crop_width > self.width:
            yield (
                f"it cuts {self.crop_height} x {self.crop_width} out of {self.height} x {self.width}: crop_height and "
                "crop_width must be at most height and width"
            )

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(channels, crop_height, crop_width)."""
        return image_shape(self, shape)[0], self.crop_height, self.crop_width

    def margins(self) -> tuple[int, int]:
        """By how much the resized image exceeds the part, in height and in width."""
        return self.height - self.crop_height, self.width - self.crop_width


class ResizedCenterCrop(_ResizedCrop):
    """Bring the image to `height` x `width`, then keep the middle `crop_height` x `crop_width` pixels."""

    message = "Transform.ResizedCenterCrop"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """An odd rest is cut at the bottom and the right."""
        self.output_shape(tuple(x.shape[1:]))
        top, left = (margin // 2 for margin in self.margins())
        return resized(x, self.height, self.width)[:, :, top : top + self.crop_height, left : left + self.crop_width]


class RandomResizedCropWithFixedAspectRatio(_ResizedCrop):
    """Bring the image to `height` x `width`, then keep `crop_height` x `crop_width` pixels at a random place."""

    message = "Transform.RandomResizedCropWithFixedAspectRatio"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Two draws a sample: top, then left."""
        self.output_shape(tuple(x.shape[1:]))
        size = (self.crop_height, self.crop_width)
        return windows(resized(x, self.height, self.width), self.margins(), size, draws)


@dataclass(frozen=True)
class RandomResizedCrop(_Resized):
    """Keep a random part of random proportions, and bring it to `height` x `width`.

    Its share of the area is uniform between `scale_min` and `scale_max`, its width over its height between `ar_min` and
    `ar_max`; where scale_min is 0, the four are 0.08, 1, 3/4 and 4/3. Of ten parts the first one that fits into the
    image is taken; if none does, the middle square.

    Source: Szegedy et al. 2014, https://arxiv.org/abs/1409.4842, section 6
    """

    message = "Transform.RandomResizedCrop"
    scale_min: float = 0.0
    scale_max: float = 0.0
    ar_min: float = 0.0
    ar_max: float = 0.0

    def problems(self) -> Iterator[str]:
        """A size without pixels, or a range that is empty."""
        yield from super().problems()
        if self.scale_min == 0:
            if unused := [name for name in ("scale_max", "ar_min", "ar_max") if getattr(self, name)]:
                yield f"{unused[0]} is set and scale_min is not; set all of scale_min, scale_max, ar_min and ar_max"
            return
        low, high, narrow, wide = self._ranges()
        if not 0 < low <= high <= 1:
            yield f"the scale must satisfy 0 < scale_min <= scale_max <= 1, got {low:g} and {high:g}"
        if not 0 < narrow <= wide < math.inf:
            yield f"the aspect ratio must satisfy 0 < ar_min <= ar_max, got {narrow:g} and {wide:g}"

    def _ranges(self) -> tuple[float, float, float, float]:
        if self.scale_min == 0:
            return 0.08, 1.0, 3 / 4, 4 / 3
        return self.scale_min, self.scale_max, self.ar_min, self.ar_max

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Forty draws a sample, four for each part: area, proportions, top, left."""
        self.output_shape(tuple(x.shape[1:]))
        tall, wide = x.shape[2:]
        low, high, narrow, broad = self._ranges()
        u = draws.uniform(4 * ATTEMPTS).reshape(len(x), ATTEMPTS, 4)
        area = (low + (high - low) * u[..., 0]) * tall * wide
        ratio = narrow + (broad - narrow) * u[..., 1]
        heights, widths = (np.rint(np.sqrt(one)).astype(np.int64) for one in (area / ratio, area * ratio))
        fits = (heights >= 1) & (widths >= 1) & (heights <= tall) & (widths <= wide)
        n, chosen = np.arange(len(x)), fits.argmax(axis=1)
        square = np.int64(min(tall, wide))
        some = fits.any(axis=1)
        height, width = (np.where(some, one[n, chosen], square) for one in (heights, widths))
        top, left = (
            np.where(some, (u[n, chosen, column] * (whole - part + 1)).astype(np.int64), (whole - square) // 2)
            for column, whole, part in ((2, tall, height), (3, wide, width))
        )
        return _interpolated(x, _stretch(top, height, self.height), _stretch(left, width, self.width))


@dataclass(frozen=True)
class RandomAffine(ImageTransform):
    """Rotate, move, scale and shear the image about its centre, by amounts that are drawn uniformly.

    Fields: `rotate_min`, `rotate_max` in degrees, counterclockwise; `translate_h`, `translate_w` the
    largest shift, as a fraction of the height and of the width; `scale_min`, `scale_max` the factor of the size, 1
    where both are 0; `shear_min`, `shear_max` in degrees. What comes from outside the image is 0.

        output place = centre + shift + scale · R(rotation) · ((1, tan shear), (0, 1)) · (input place − centre)
    """

    message = "Transform.RandomAffine"
    rotate_min: float = 0.0
    rotate_max: float = 0.0
    translate_h: float = 0.0
    translate_w: float = 0.0
    scale_min: float = 0.0
    scale_max: float = 0.0
    shear_min: float = 0.0
    shear_max: float = 0.0

    def problems(self) -> Iterator[str]:
        """A range that is upside down or too large."""
        for name, bound in (("rotate", 360), ("shear", 89)):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if not -bound <= low <= high <= bound:
                yield f"{name}_min <= {name}_max must be between -{bound} and {bound} degrees, got {low:g} and {high:g}"
        for name in ("translate_h", "translate_w"):
            yield from collect(check_number(name, getattr(self, name), at_least=0, at_most=1))
        if (self.scale_min, self.scale_max) != (0, 0) and not 0 < self.scale_min <= self.scale_max < math.inf:
            yield f"the scale must satisfy 0 < scale_min <= scale_max, got {self.scale_min:g} and {self.scale_max:g}"

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Five draws a sample: rotation, shift down, shift right, scale, shear."""
        _, tall, wide = self.output_shape(tuple(x.shape[1:]))
        y_at, x_at = self._sources(draws.uniform(5), tall, wide)
        low_y, low_x = np.floor(y_at).astype(np.int64), np.floor(x_at).astype(np.int64)
        down, across = (like(x, (at - low)[:, None].astype(np.float32)) for at, low in ((y_at, low_y), (x_at, low_x)))
        total: Samples = 0
        for dy, by in ((0, 1 - down), (1, down)):
            for dx, bx in ((0, 1 - across), (1, across)):
                total = total + by * bx * self._at(x, low_y + dy, low_x + dx)
        return pixels_of(total) if is_pixels(x) else total

    @staticmethod
    def _at(x: Samples, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Samples:
        """The pixels (n, channels, height, width) at rows and columns (n, height, width), 0 outside."""
        tall, wide = x.shape[2:]
        inside = (rows >= 0) & (rows < tall) & (columns >= 0) & (columns < wide)
        rows, columns = np.clip(rows, 0, tall - 1), np.clip(columns, 0, wide - 1)
        n, c = np.arange(len(x))[:, None, None, None], np.arange(x.shape[1])[None, :, None, None]
        found = x[like(x, n), like(x, c), like(x, rows[:, None]), like(x, columns[:, None])]
        return converted(found, "float32") * like(x, inside[:, None].astype(np.float32))

    def _sources(self, u: NDArray[np.float64], tall: int, wide: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where each output pixel comes from: rows and columns (n, height, width)."""
        angle = np.radians(self.rotate_min + (self.rotate_max - self.rotate_min) * u[:, 0])
        down, right = self.translate_h * tall * (2 * u[:, 1] - 1), self.translate_w * wide * (2 * u[:, 2] - 1)
        low, high = (self.scale_min, self.scale_max) if self.scale_max else (1.0, 1.0)
        scale = low + (high - low) * u[:, 3]
        shear = np.tan(np.radians(self.shear_min + (self.shear_max - self.shear_min) * u[:, 4]))
        centre_y, centre_x = (tall - 1) / 2, (wide - 1) / 2
        y, x = np.mgrid[:tall, :wide].astype(np.float64)
        y = y - centre_y - down[:, None, None]
        x = x - centre_x - right[:, None, None]
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        # Rows grow downwards, so a counterclockwise turn of the image takes (x, y) to (x cos + y sin, −x sin + y cos).
        back_x, back_y = (x * cos - y * sin) / scale[:, None, None], (x * sin + y * cos) / scale[:, None, None]
        back_x = back_x - shear[:, None, None] * back_y
        # A turn of 0 or 90 degrees must hit pixels exactly, and cosines are exact to 2⁻⁵³ only.
        return np.round(back_y + centre_y, 9), np.round(back_x + centre_x, 9)
