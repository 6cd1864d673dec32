"""Layers that change images. No gradient flows through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from descend.graph import BilinearResize, CompositeImageTransformation, Cutout, Rotation
from descend.lower.forward_context import stream_of
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


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
