"""Layers with weights that map features to features."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.graph import (
    GRU,
    ChannelwiseFullyConnected,
    ChannelwiseScaleBias,
    Convolution,
    Deconvolution,
    EntrywiseScaleBias,
    FullyConnected,
)
from descend.lower.formats import by_channel
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


@lowers(FullyConnected)
def fully_connected(planned: PlannedLayer) -> Forward:
    """W x (+ b) of the flattened sample; Wᵀ x (+ b) with `transpose`."""
    layer, shape = cast("FullyConnected", planned.layer), planned.output_shape

    def forward(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x.flatten(1), matrix.t() if layer.transpose else matrix, bias)

    def shaped(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        return forward(x, matrix, bias).view(len(x), *shape)

    return forward if len(shape) == 1 else shaped


@lowers(Convolution)
def convolution(planned: PlannedLayer) -> Forward:
    """Cross-correlation in one to three spatial dimensions."""
    layer = cast("Convolution", planned.layer)
    window, groups = layer.window(), layer.setting("groups")
    convolve = _CONVOLUTIONS[layer.num_dims]

    def forward(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolve(x, kernel, bias, window.stride, window.padding, window.dilation, groups)

    return forward


@lowers(Deconvolution)
def deconvolution(planned: PlannedLayer) -> Forward:
    """Transposed convolution in one to three spatial dimensions."""
    layer = cast("Deconvolution", planned.layer)
    window, extra, groups = layer.window(), layer.extra(), layer.setting("groups")
    convolve = _TRANSPOSED[layer.num_dims]

    def forward(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolve(x, kernel, bias, window.stride, window.padding, extra, groups, window.dilation)

    return forward


@lowers(ChannelwiseFullyConnected)
def channelwise_fully_connected(planned: PlannedLayer) -> Forward:
    """W x[c] (+ b) of every flattened slice; Wᵀ x[c] (+ b) with `transpose`."""
    shape, transpose = planned.output_shape, planned.layer.setting("transpose")

    def forward(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(by_channel(x), matrix.t() if transpose else matrix, bias).view(len(x), *shape)

    return forward


@lowers(ChannelwiseScaleBias)
def channelwise_scale_bias(planned: PlannedLayer) -> Forward:
    """a_c x + b_c."""
    shape = (-1, *(1,) * (len(planned.output_shape) - 1))

    def forward(x: Tensor, weights: Tensor) -> Tensor:
        return x * weights[:, 0].view(shape) + weights[:, 1].view(shape)

    return forward


@lowers(EntrywiseScaleBias)
def entrywise_scale_bias(planned: PlannedLayer) -> Forward:
    """a ∘ x + b."""
    shape = planned.output_shape

    def forward(x: Tensor, weights: Tensor) -> Tensor:
        return x * weights[:, 0].view(shape) + weights[:, 1].view(shape)

    return forward


# ---- layers that walk along a sequence


@lowers(GRU)
def gru(planned: PlannedLayer) -> Forward:
    """torch's own, whose gates, order and weights are LBANN's."""
    layers: int = planned.layer.setting("num_layers")

    def forward(sequence: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
        if not len(sequence):  # torch's kernel takes no empty batch
            return sequence[:, :, :1].expand(0, *planned.output_shape)
        start = hidden.reshape(len(hidden), layers, -1).transpose(0, 1).contiguous()
        differentiable = torch.is_grad_enabled()  # cuDNN has a gradient of its training mode alone
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.gru(sequence, start, list(weights), True, layers, 0.0, differentiable, False, True)[0]

    return forward
