"""Activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from descend.graph import Elu, Identity, LeakyRelu, LogSoftmax, Relu, Softmax
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
    return lambda x: functional.log_softmax(x.flatten(1), 1).view_as(x)


class _Softmax(torch.autograd.Function):
    """Softmax over dimension 1 whose result is kept from 0, with the gradient of the result it gives.

    A plain clamp would have no gradient at a clipped entry, and a sample whose own class is clipped would never be
    learned.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = functional.softmax(x, 1).clamp_min(math.sqrt(torch.finfo(x.dtype).tiny))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        (y,) = ctx.saved_tensors
        weighted = gradients[0] * y
        return weighted - y * weighted.sum(1, keepdim=True)


@lowers(Softmax)
def softmax(planned: PlannedLayer) -> Forward:
    """Over the whole sample, or over channels at each position; at least √(smallest float), as LBANN has it."""
    if planned.layer.setting("softmax_mode") == "channel":
        return _Softmax.apply
    return lambda x: _Softmax.apply(x.flatten(1)).view_as(x)
