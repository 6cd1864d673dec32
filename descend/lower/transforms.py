"""Layers without weights that move, join, pool or pass on tensors."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.graph import (
    BilinearResize,
    CompositeImageTransformation,
    Concatenation,
    Cross_Grid_Sum,
    Cross_Grid_Sum_Slice,
    Cutout,
    Dummy,
    Evaluation,
    Hadamard,
    IdentityZero,
    Pooling,
    Reshape,
    Rotation,
    Slice,
    Split,
    StopGradient,
    Sum,
    WeightedSum,
)
from descend.lower.formats import widened
from descend.lower.forward_context import stream_of
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@lowers(Pooling)
def pooling(planned: PlannedLayer) -> Forward:
    """The largest or the mean entry of each window; "average" counts padding as zeros."""
    layer = cast("Pooling", planned.layer)
    size, stride, padding, _ = layer.window()
    space = planned.input_shapes[0][1:]
    ends = zip(padding, size, space, strict=True)
    # Over three dimensions torch averages no image that is smaller than the window before it is padded.
    if any(2 * pad > length or (layer.num_dims == 3 and whole < length) for pad, length, whole in ends):
        return _pooling_of_padded(layer)
    if layer.takes_largest:
        pool = _MAX[layer.num_dims]
        return lambda x: pool(x, size, stride, padding)
    average, counted = _AVERAGE[layer.num_dims], layer.pool_mode == "average"

    def averaged(x: Tensor) -> Tensor:
        return average(x, size, stride, padding, count_include_pad=counted)

    return _wide_in_space(averaged, layer)


def _wide_in_space(forward: Forward, layer: Pooling) -> Forward:
    """Over three dimensions torch averages in no half precision on a CPU."""
    return widened(forward, back=True) if layer.num_dims == 3 else forward


def _pooling_of_padded(layer: Pooling) -> Forward:
    """The same where torch's own padding, half a window at most, is not enough."""
    size, stride, padding, _ = layer.window()
    sides = [pad for one in reversed(padding) for pad in (one, one)]
    if layer.takes_largest:
        pool = _MAX[layer.num_dims]
        return lambda x: pool(functional.pad(x, sides, value=-math.inf), size, stride)
    average = _AVERAGE[layer.num_dims]
    if layer.pool_mode == "average":
        return _wide_in_space(lambda x: average(functional.pad(x, sides), size, stride), layer)

    def of_entries(x: Tensor) -> Tensor:
        share = average(functional.pad(torch.ones_like(x[:1]), sides), size, stride)
        return average(functional.pad(x, sides), size, stride) / share

    return _wide_in_space(of_entries, layer)


@lowers(Reshape)
def reshape(planned: PlannedLayer) -> Forward:
    """The same entries under other dimensions."""
    shape = planned.output_shape
    return lambda x: x.reshape(-1, *shape)


@lowers(Concatenation)
def concatenation(planned: PlannedLayer) -> Forward:
    """The parents one after the other."""
    dimension = cast("Concatenation", planned.layer).axis + 1

    def forward(*xs: Tensor) -> Tensor:
        return torch.cat(xs, dimension)

    return forward


def _sum(xs: Sequence[Tensor]) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


@lowers(Sum)
def entrywise_sum(planned: PlannedLayer) -> Forward:
    """Σ xᵢ."""
    return lambda *xs: _sum(xs)


@lowers(Cross_Grid_Sum)
def cross_grid_sum(planned: PlannedLayer) -> Forward:
    """Σ xᵢ for each child."""
    count = len(planned.output_shapes)
    return lambda *xs: _sum(xs) if count == 1 else (_sum(xs),) * count


@lowers(Cross_Grid_Sum_Slice)
def cross_grid_sum_slice(planned: PlannedLayer) -> Forward:
    """Σ xᵢ in equal pieces."""
    count = len(planned.output_shapes)
    return lambda *xs: _sum(xs) if count == 1 else _sum(xs).chunk(count, 1)


@lowers(WeightedSum)
def weighted_sum(planned: PlannedLayer) -> Forward:
    """Σ factor · xᵢ."""
    factors = cast("WeightedSum", planned.layer).scaling_factors
    return lambda *xs: _sum([factor * x for factor, x in zip(factors, xs, strict=True)])


@lowers(Hadamard)
def hadamard(planned: PlannedLayer) -> Forward:
    """Π xᵢ."""

    def forward(first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = first * other
        return first

    return forward


@lowers(Slice)
def slices(planned: PlannedLayer) -> Forward:
    """Pieces along an axis."""
    layer = cast("Slice", planned.layer)
    dim, points = layer.axis + 1, layer.slice_points[: len(planned.output_shapes) + 1]

    def forward(x: Tensor) -> Tensor | tuple[Tensor, ...]:
        pieces = tuple(x.narrow(dim, begin, end - begin) for begin, end in pairwise(points))
        return pieces[0] if len(pieces) == 1 else pieces

    return forward


@lowers(StopGradient)
def stop_gradient(planned: PlannedLayer) -> Forward:
    """x without its past."""
    return lambda x: x.detach()


@lowers(IdentityZero)
def identity_zero(planned: PlannedLayer) -> Forward:
    """x, or zeros both ways while the layer is frozen."""
    if not planned.layer.freeze:
        return lambda x: x
    return lambda x: x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0.0)


@lowers(Split)
def split(planned: PlannedLayer) -> Forward:
    """x for each child."""
    count = len(planned.output_shapes)
    return lambda x: x if count == 1 else (x,) * count


@lowers(Dummy)
@lowers(Evaluation)
def pass_on(planned: PlannedLayer) -> Forward:
    """x; the objective and the metrics take means themselves."""
    return lambda x: x


# ---- layers that change images. No gradient flows through them


@lowers(BilinearResize)
def bilinear_resize(planned: PlannedLayer) -> Forward:
    """Pixel centres at one half, edges going on outside."""
    size = planned.output_shape[1:]
    return lambda x: functional.interpolate(x.detach(), size, mode="bilinear", align_corners=False)


def _sampled(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The image (n, C, H, W) between pixels, at rows and columns (n, H, W): bilinear, and zero outside."""
    _, channels, height, width = image.shape
    top, left = rows.floor(), columns.floor()
    y = torch.zeros_like(image)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        near = (1 - (rows - row).abs()) * (1 - (columns - column).abs())
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = (row * width + column).where(inside, 0).long().flatten(1)
        entries = image.flatten(2).gather(2, place.unsqueeze(1).expand(-1, channels, -1)).view_as(image)
        y = y + entries * near.where(inside, 0.0).unsqueeze(1)
    return y


def _transformed(image: Tensor, angle: Tensor, shear: Tensor | None, translation: Tensor | None) -> Tensor:
    """Output pixel p is taken from c + S R (p − c) + t."""
    _, _, height, width = image.shape
    x = torch.arange(width, dtype=image.dtype, device=image.device) - width // 2
    y = (torch.arange(height, dtype=image.dtype, device=image.device) - height // 2).unsqueeze(1)
    turn = torch.deg2rad(angle.detach().view(-1, 1, 1))
    columns, rows = turn.cos() * x - turn.sin() * y, turn.sin() * x + turn.cos() * y
    if shear is not None:
        across, down = shear.detach().view(-1, 2, 1, 1).unbind(1)
        columns, rows = columns + across * rows, rows + down * columns
    if translation is not None:
        right, down = translation.detach().view(-1, 2, 1, 1).unbind(1)
        columns, rows = columns + right, rows + down
    return _sampled(image.detach(), rows + height // 2, columns + width // 2)


@lowers(Rotation)
def rotation(planned: PlannedLayer) -> Forward:
    """Turned by an angle in degrees."""
    return lambda image, angle: _transformed(image, angle, None, None)


@lowers(CompositeImageTransformation)
def composite_image_transformation(planned: PlannedLayer) -> Forward:
    """Turned, sheared and moved."""
    return _transformed


@lowers(Cutout, with_pass=True)
def cutout(planned: PlannedLayer) -> Forward:
    """A square of zeros around a pixel that the mini-batch shares."""
    _, height, width = planned.output_shape
    stream = stream_of(planned.name)

    def blank(places: Tensor, centre: Tensor, side: Tensor) -> Tensor:
        """Whether each row or column is in the square; (samples, places)."""
        begin = centre - (side / 2).floor()
        return (places >= begin) & (places < begin + side)

    def forward(at: ForwardContext, image: Tensor, sides: Tensor) -> Tensor:
        row, column = at.shared_uniform(stream, 2)
        side = sides.detach().floor().view(-1, 1)
        rows = blank(torch.arange(height, device=image.device), (row * height).floor(), side)
        columns = blank(torch.arange(width, device=image.device), (column * width).floor(), side)
        return image.detach().masked_fill((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), 0.0)

    return forward
