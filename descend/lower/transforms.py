"""Layers without weights that move, join, pool or pass on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.errors import Unsupported
from descend.graph import Concatenation, Dummy, Evaluation, Pooling, Reshape, Split, Sum
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@lowers(Pooling)
def pooling(planned: PlannedLayer) -> Forward:
    """The largest or the mean entry of each window; "average" counts padding as zeros."""
    layer = cast("Pooling", planned.layer)
    size, stride, padding, _ = layer.window()
    if layer.num_dims not in _MAX:
        raise Unsupported(f"layer '{planned.name}': pooling of {layer.num_dims} dimensions is not lowered; use 1 to 3")
    if layer.pool_mode == "max":
        pool = _MAX[layer.num_dims]
        return lambda x: pool(x, size, stride, padding)
    average, counted = _AVERAGE[layer.num_dims], layer.pool_mode == "average"
    return lambda x: average(x, size, stride, padding, count_include_pad=counted)


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


@lowers(Sum)
def entrywise_sum(planned: PlannedLayer) -> Forward:
    """Σ xᵢ."""

    def forward(first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = first + other
        return first

    return forward


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
