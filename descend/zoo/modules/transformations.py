"""Permutation, padding and cumulative sums along an axis; most are functions of a layer, as in LBANN.

Layers do not know their shapes while a graph is written, so some of these have them as arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    ChannelwiseFullyConnected,
    Concatenation,
    Identity,
    Multiply,
    Reshape,
    Scatter,
    Slice,
    TensorPermute,
    Tessellate,
    WeightsLayer,
)
from descend.zoo.modules.module import Module, fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.graph import Layer, Shape

__all__ = ["Cumsum", "FFTShift", "PeriodicPadding2D", "PeriodicPadding3D", "Permute", "RadialProfile"]


def Permute(  # noqa: N802  # LBANN's name
    x: Layer,
    shape: Sequence[int],
    axes: Sequence[int] | None = None,
    name: str | None = None,
    return_dims: bool = False,
) -> Layer | tuple[Layer, Shape]:
    """The axes in another order, the last first without `axes`: axis i of the result is axis axes[i] of x.

    Args:
        x: A layer of this shape.
        shape: Its shape.
        axes: The order; negative ones count from the end.
        name: Of the layer.
        return_dims: Whether the new shape is given beside the layer.

    Raises:
        ConfigurationError: `axes` is not an order of the axes.
    """
    count = len(shape)
    order = [axis % count for axis in axes] if axes is not None else list(range(count))[::-1]
    if sorted(order) != list(range(count)):
        raise ConfigurationError(f"Permute of shape {tuple(shape)} has axes {axes}; expected each axis once")
    y = TensorPermute(x, axes=order, name=name)
    return (y, tuple(shape[axis] for axis in order)) if return_dims else y


def Cumsum(  # noqa: N802  # LBANN's name
    x: Layer, shape: Sequence[int], axis: int = 0, name: str | None = None, return_dims: bool = False
) -> Layer | tuple[Layer, Shape]:
    """y[i] = x[0] + ... + x[i] along an axis: a product with a triangle of ones that is not trained.

    Args:
        x: A layer of this shape.
        shape: Its shape.
        axis: The axis; a negative one counts from the end.
        name: Of the last layer.
        return_dims: Whether the shape is given beside the layer.

    Raises:
        ConfigurationError: there is no such axis.
    """
    shape = tuple(shape)
    if not -len(shape) <= axis < len(shape):
        raise ConfigurationError(f"Cumsum of shape {shape} has axis {axis}; expected an axis of it")
    n = shape[axis]
    others = [i for i in range(len(shape)) if i != axis % len(shape)]
    order = [*others, axis % len(shape)]
    part = name or f"{x.name}_cumsum"
    lines = Reshape(TensorPermute(x, axes=order, name=f"{part}_last"), dims=[-1, n], name=f"{part}_lines")
    # Column by column, as listed values fill a matrix; entry (row, column) of the triangle is 1 from the diagonal down.
    ones = fixed((float(row >= column) for column in range(n) for row in range(n)), f"{part}_triangle")
    sums = ChannelwiseFullyConnected(lines, output_channel_dims=n, bias=False, weights=[ones], name=f"{part}_sums")
    back = Reshape(sums, dims=[shape[i] for i in order], name=f"{part}_back")
    y = TensorPermute(back, axes=[order.index(i) for i in range(len(shape))], name=name)
    return (y, shape) if return_dims else y


def PeriodicPadding2D(  # noqa: N802  # LBANN's name
    x: Layer, height: int, width: int, padding: int = 1, name: str | None = None
) -> Layer:
    """An image in the middle of copies of itself: (C, height + 2 padding, width + 2 padding) from (C, height, width).

    Raises:
        ConfigurationError: the padding is negative, or larger than the image.
    """
    return _padded(x, (height, width), padding, name)


def PeriodicPadding3D(  # noqa: N802  # LBANN's name
    x: Layer, depth: int, height: int, width: int, padding: int = 1, name: str | None = None
) -> Layer:
    """A volume in the middle of copies of itself; see PeriodicPadding2D."""
    return _padded(x, (depth, height, width), padding, name)


def _padded(x: Layer, sizes: tuple[int, ...], padding: int, name: str | None) -> Layer:
    if not 0 <= padding <= min(sizes):
        raise ConfigurationError(f"a periodic padding of {sizes} has padding {padding}; expected 0 to {min(sizes)}")
    part = name or f"{x.name}_periodic"
    if padding:
        for axis, size in enumerate(sizes, 1):
            before = _cut(x, axis, size - padding, size, f"{part}_before{axis}")
            after = _cut(x, axis, 0, padding, f"{part}_after{axis}")
            x = Concatenation(before, x, after, axis=axis, name=f"{part}_axis{axis}")
    return Identity(x, name=part)


class FFTShift(Module):
    """The zero frequency moved to the middle of each axis but the first, as numpy.fft.fftshift does.

    Args:
        name: `fftshift<N>` without one.
    """

    prefix: ClassVar[str] = "fftshift"

    def forward(self, x: Layer, dims: Sequence[int]) -> Layer:
        """Shapes: x of shape `dims`, channels first, and so the result."""
        for axis, size in enumerate(dims[1:], 1):
            if size > 1:
                middle = (size + 1) // 2
                begin = _cut(x, axis, middle, size, self.label(f"begin{axis}"))
                end = _cut(x, axis, 0, middle, self.label(f"end{axis}"))
                x = Concatenation(begin, end, axis=axis, name=self.label(f"axis{axis}"))
        return Identity(x, name=self.label())


class RadialProfile(Module):
    """The mean of an image at each distance from its middle: of the pixels whose distance, rounded down, is r.

    The middle of (height, width) is (height // 2, width // 2), where FFTShift puts the zero frequency.

    Args:
        name: `radialprofile<N>` without one.
    """

    prefix: ClassVar[str] = "radialprofile"

    def forward(self, image: Layer, dims: Sequence[int], max_r: int) -> Layer:
        """Shapes: image (channels, height, width) = dims; result (channels, max_r), for r = 0 to max_r − 1."""
        channels, height, width = dims
        places = [
            math.isqrt((i - height // 2) ** 2 + (j - width // 2) ** 2) for i in range(height) for j in range(width)
        ]
        counts = [places.count(r) for r in range(max_r)]
        if not all(counts):
            raise ConfigurationError(
                f"RadialProfile '{self.name}' of {height} x {width} has max_r {max_r}; no pixel is at distance "
                f"{counts.index(0)}"
            )
        index = WeightsLayer(
            dims=[height * width], weights=[fixed(places, self.label("places"))], name=self.label("index")
        )
        lines = Reshape(image, dims=[channels, height * width], name=self.label("lines"))
        sums = Scatter(lines, index, axis=1, dims=[channels, max_r], name=self.label("sums"))
        shares = fixed([1 / count for count in counts], self.label("shares"))
        line = WeightsLayer(dims=[1, max_r], weights=[shares], name=self.label("share"))
        share = Tessellate(line, dims=[channels, max_r], name=self.label("share_of_channels"))
        return Multiply(sums, share, name=self.label())


def _cut(x: Layer, axis: int, begin: int, end: int, name: str) -> Layer:
    return Slice(x, axis=axis, slice_points=[begin, end], name=name)
