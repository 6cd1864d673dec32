"""Layers that bring numbers to a common size."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.errors import Unsupported
from descend.graph import (
    BatchNormalization,
    EntrywiseBatchNormalization,
    InstanceNorm,
    LayerNorm,
    LocalResponseNormalization,
)
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.passes import Pass
    from descend.lower.registry import Forward

__all__ = ["check_whole_batch"]


def check_whole_batch(at: Pass, planned: PlannedLayer, why: str) -> None:
    """Refuse a part of a mini-batch.

    Raises:
        Unsupported: the pass is over fewer samples than the mini-batch has.
    """
    if at.samples != at.batch_size:
        raise Unsupported(
            f"layer '{planned.name}' ({type(planned.layer).__name__}) {why} the whole mini-batch of {at.batch_size} "
            f"samples and is given {at.samples} of them: train with one part and one rank, or a smaller mini-batch"
        )


def _follow(running: Tensor, batch: Tensor, decay: float) -> None:
    """running ← decay · running + (1 − decay) · batch."""
    with torch.no_grad():
        running.lerp_(batch.detach().to(running.dtype), 1.0 - decay)


@lowers(BatchNormalization, with_pass=True)
def batch_normalization(planned: PlannedLayer) -> Forward:
    """By mean and variance of each channel over mini-batch and space; by the running ones in evaluation."""
    layer = cast("BatchNormalization", planned.layer)
    decay, eps = float(layer.setting("decay")), float(layer.setting("epsilon"))
    lost = 0 if layer.no_bessel_correction else 1
    dims = (0, *range(2, len(planned.output_shape) + 1))
    shape = (-1, *(1,) * (len(planned.output_shape) - 1))

    def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(x, dims, correction=lost)
        return variance.clamp_min(eps), mean

    def forward(
        at: Pass, x: Tensor, scale: Tensor, bias: Tensor, running_mean: Tensor, running_variance: Tensor
    ) -> Tensor:
        if not at.training:
            return functional.batch_norm(x, running_mean, running_variance, scale, bias, eps=eps)
        check_whole_batch(at, planned, "takes statistics over")
        if x.numel() // x.shape[1] > 1:
            variance, mean = statistics(x)
            _follow(running_mean, mean, decay)
            _follow(running_variance, variance, decay)
        else:  # of one number there is no variance
            mean = x.mean(dims)
            variance = torch.ones_like(mean)
        factor = scale * (variance + eps).rsqrt()
        # In this order a large mean costs no digits, as x · factor − mean · factor would.
        return (x - mean.view(shape)) * factor.view(shape) + bias.view(shape)

    return forward


@lowers(EntrywiseBatchNormalization, with_pass=True)
def entrywise_batch_normalization(planned: PlannedLayer) -> Forward:
    """By mean and variance of each entry over the mini-batch; by the running ones in evaluation."""
    layer = cast("EntrywiseBatchNormalization", planned.layer)
    decay, eps = layer.decay, layer.epsilon

    def forward(at: Pass, x: Tensor, running_mean: Tensor, running_variance: Tensor) -> Tensor:
        if not at.training:
            return (x - running_mean) * (running_variance + eps).rsqrt()
        check_whole_batch(at, planned, "takes statistics over")
        variance, mean = torch.var_mean(x, 0, correction=0)
        n = len(x)
        if n > 1:
            _follow(running_mean, mean, decay)
            _follow(running_variance, variance * (n / (n - 1)), decay)
        else:
            variance = torch.ones_like(mean)
        return (x - mean) * (variance + eps).rsqrt()

    return forward


@lowers(LayerNorm)
def layer_norm(planned: PlannedLayer) -> Forward:
    """Over the dimensions of the sample from start_dim on."""
    layer = cast("LayerNorm", planned.layer)
    shape, eps = layer.normalized(planned.output_shape), float(layer.setting("epsilon"))

    def forward(x: Tensor, *affine: Tensor) -> Tensor:
        given = iter(affine)
        scale = next(given) if layer.scale else None
        return functional.layer_norm(x, shape, scale, next(given) if layer.bias else None, eps)

    return forward


@lowers(InstanceNorm)
def instance_norm(planned: PlannedLayer) -> Forward:
    """Over each channel of each sample."""
    eps = float(planned.layer.setting("epsilon"))

    def forward(x: Tensor) -> Tensor:
        entries = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
        return functional.layer_norm(entries, entries.shape[2:], eps=eps).view_as(x)

    return forward


@lowers(LocalResponseNormalization)
def local_response_normalization(planned: PlannedLayer) -> Forward:
    """By the sum of squares over neighbouring channels, α undivided."""
    layer = cast("LocalResponseNormalization", planned.layer)
    reach = layer.window_width // 2

    def forward(x: Tensor) -> Tensor:
        squares = functional.pad(x.flatten(2) if x.dim() > 2 else x.unsqueeze(2), (0, 0, reach, reach)).square()
        sums = squares.unfold(1, 2 * reach + 1, 1).sum(-1).view_as(x)
        return x * (layer.lrn_k + layer.lrn_alpha * sums) ** -layer.lrn_beta

    return forward
