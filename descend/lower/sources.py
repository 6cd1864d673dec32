"""Layers without parents. They learn from the pass how many samples there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from descend.graph import Bernoulli, Constant, Gaussian, Input, MiniBatchIndex, MiniBatchSize, Uniform, WeightsLayer
from descend.lower.forward_context import stream_of
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer, Shape
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


def _filled(at: ForwardContext, shape: Shape, value: float) -> Tensor:
    return torch.full((at.samples, *shape), value, dtype=at.dtype, device=at.device)


@lowers(Constant, with_pass=True)
def constant(planned: PlannedLayer) -> Forward:
    """One value everywhere."""
    layer = cast("Constant", planned.layer)
    return lambda at: _filled(at, planned.output_shape, layer.value)


@lowers(Gaussian, with_pass=True)
def gaussian(planned: PlannedLayer) -> Forward:
    """Random numbers of N(mean, stdev²)."""
    layer = cast("Gaussian", planned.layer)
    mean, deviation = layer.moments()
    stream = stream_of(planned.name)

    def forward(at: ForwardContext) -> Tensor:
        if layer.training_only and not at.training:
            return _filled(at, planned.output_shape, mean)
        return mean + deviation * at.normal(stream, planned.output_shape)

    return forward


@lowers(Uniform, with_pass=True)
def uniform(planned: PlannedLayer) -> Forward:
    """Random numbers in [min, max)."""
    layer = cast("Uniform", planned.layer)
    low, high = layer.bounds()
    stream = stream_of(planned.name)

    def forward(at: ForwardContext) -> Tensor:
        if layer.training_only and not at.training:
            return _filled(at, planned.output_shape, (low + high) / 2)
        return low + (high - low) * at.uniform(stream, planned.output_shape)

    return forward


@lowers(Bernoulli, with_pass=True)
def bernoulli(planned: PlannedLayer) -> Forward:
    """1 with a probability, in training."""
    layer = cast("Bernoulli", planned.layer)
    stream = stream_of(planned.name)

    def forward(at: ForwardContext) -> Tensor:
        if not at.training:
            return _filled(at, planned.output_shape, 0.0)
        return at.chance(stream, planned.output_shape, layer.prob).to(at.dtype)

    return forward


@lowers(MiniBatchIndex, with_pass=True)
def mini_batch_index(planned: PlannedLayer) -> Forward:
    """Place in the whole mini-batch."""
    return lambda at: at.positions().to(at.dtype).unsqueeze(1)


@lowers(MiniBatchSize, with_pass=True)
def mini_batch_size(planned: PlannedLayer) -> Forward:
    """Samples of the whole mini-batch."""
    return lambda at: _filled(at, (1,), at.batch_size)


@lowers(WeightsLayer, with_pass=True)
def weights_layer(planned: PlannedLayer) -> Forward:
    """The weights, for every sample."""
    return lambda at, weights: weights.expand(at.samples, *weights.shape)


# ---- where data enter the graph


@lowers(Input)
def input_layer(planned: PlannedLayer) -> Forward:
    """The field as it comes; single numbers become tensors of one entry."""
    shape = planned.output_shape

    def forward(x: Tensor) -> Tensor:
        return x if x.shape[1:] == shape else x.reshape(-1, *shape)

    return forward
