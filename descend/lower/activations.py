"""Activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.graph import ChannelwiseSoftmax, Elu, Identity, LeakyRelu, LogSoftmax, Relu, Softmax
from descend.lower.formats import by_channel, may_branch, with_gradient
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward


@lowers(Relu)
def relu(planned: PlannedLayer) -> Forward:
    """max(x, 0)."""
    return functional.relu


@lowers(LeakyRelu)
def leaky_relu(planned: PlannedLayer) -> Forward:
    """x, or slope · x below 0."""
    slope: float = planned.layer.setting("negative_slope")
    return lambda x: functional.leaky_relu(x, slope)


@lowers(Elu)
def elu(planned: PlannedLayer) -> Forward:
    """x, or α (eˣ − 1) below 0."""
    alpha: float = planned.layer.setting("alpha")
    return lambda x: functional.elu(x, alpha)


@lowers(Identity)
def identity(planned: PlannedLayer) -> Forward:
    """x."""
    return lambda x: x


@lowers(LogSoftmax)
def log_softmax(planned: PlannedLayer) -> Forward:
    """Over the whole sample."""
    if len(planned.output_shape) == 1:
        return lambda x: functional.log_softmax(x, 1)
    return lambda x: functional.log_softmax(x.flatten(1), 1).view_as(x)


def _floor(x: Tensor) -> float:
    return math.sqrt(torch.finfo(x.dtype).tiny)


def _kept_from_zero(x: Tensor) -> Tensor:
    """Softmax over dimension 1, at least √(smallest float)."""
    return functional.softmax(x, 1).clamp_min(_floor(x))


def _softmax_gradient(dy: Tensor, y: Tensor, x: Tensor) -> Tensor:
    weighted = dy * y
    return weighted - y * weighted.sum(1, keepdim=True)


# With the gradient of the result that it gives: a plain clamp would have none at a clipped entry, and a sample whose
# own class is clipped would never be learned.
_clipped_softmax = with_gradient(_kept_from_zero, _softmax_gradient)


def _softmax(x: Tensor) -> Tensor:
    """The same; by torch's own softmax, which is faster, where it may know of the clipped values.

    It keeps its result for the backward pass, where y is that of the rule above. So the result is clipped in its place,
    and `data` keeps that from torch, which would take it for a mistake.
    """
    if not may_branch(x):
        return _clipped_softmax(x)
    y = functional.softmax(x, 1)
    y.data.clamp_min_(_floor(x))
    return y


@lowers(Softmax)
def softmax(planned: PlannedLayer) -> Forward:
    """Over the whole sample, or over channels at each position; at least √(smallest float), as LBANN has it."""
    if planned.layer.setting("softmax_mode") == "channel" or len(planned.output_shape) == 1:
        return _softmax
    return lambda x: _softmax(x.flatten(1)).view_as(x)


@lowers(ChannelwiseSoftmax)
def channelwise_softmax(planned: PlannedLayer) -> Forward:
    """Over each slice along a dimension, or along that dimension alone."""
    layer = cast("ChannelwiseSoftmax", planned.layer)
    dim = layer.dim % len(planned.output_shape) + 1
    if layer.single_dim_mode:
        return lambda x: functional.softmax(x, dim)
    if dim == 1:
        return lambda x: functional.softmax(by_channel(x), 2).view_as(x)
    return lambda x: functional.softmax(x.flatten(1, -2), 1).view_as(x)
