"""Layers with weights that map features to features."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.nn import functional

from descend.errors import Unsupported
from descend.graph import Convolution, FullyConnected
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@lowers(FullyConnected)
def fully_connected(planned: PlannedLayer) -> Forward:
    """W x (+ b) of the flattened sample; Wᵀ x (+ b) with `transpose`."""
    layer = cast("FullyConnected", planned.layer)

    def forward(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x.flatten(1), matrix.t() if layer.transpose else matrix, bias)

    return forward


@lowers(Convolution)
def convolution(planned: PlannedLayer) -> Forward:
    """Cross-correlation in one to three spatial dimensions."""
    layer = cast("Convolution", planned.layer)
    window, groups = layer.window(), layer.setting("groups")
    if layer.num_dims not in _CONVOLUTIONS:
        raise Unsupported(
            f"layer '{planned.name}': a convolution of {layer.num_dims} dimensions is not lowered; use 1 to 3"
        )
    convolve = _CONVOLUTIONS[layer.num_dims]

    def forward(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolve(x, kernel, bias, window.stride, window.padding, window.dilation, groups)

    return forward
