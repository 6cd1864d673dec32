"""Layers that make few numbers of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from descend.graph import (
    BatchwiseReduceSum,
    ChannelwiseMean,
    Covariance,
    MultiDimReduction,
    Reduction,
    RowwiseWeightsNorms,
    Variance,
)
from descend.lower.channels import by_channel
from descend.lower.normalization import check_whole_batch
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


@lowers(Reduction)
def reduction(planned: PlannedLayer) -> Forward:
    """Sum or mean of the sample."""
    if planned.layer.setting("mode") == "sum":
        return lambda x: x.flatten(1).sum(1, keepdim=True)
    return lambda x: x.flatten(1).mean(1, keepdim=True)


def _product(x: Tensor, dims: list[int]) -> Tensor:
    kept = [dim for dim in range(x.dim()) if dim not in dims]
    return x.permute(*kept, *dims).flatten(len(kept)).prod(-1)


@lowers(MultiDimReduction)
def multi_dim_reduction(planned: PlannedLayer) -> Forward:
    """Sum, product, max or min over axes."""
    layer, shape = cast("MultiDimReduction", planned.layer), planned.output_shape
    dims = [axis + 1 for axis in layer.axes]
    reduce = {"sum": torch.sum, "product": _product, "max": torch.amax, "min": torch.amin}[layer.setting("mode")]
    return lambda x: reduce(x, dims).view(-1, *shape)


@lowers(BatchwiseReduceSum, with_pass=True)
def batchwise_reduce_sum(planned: PlannedLayer) -> Forward:
    """Sum over the mini-batch, for every sample."""

    def forward(at: ForwardContext, x: Tensor) -> Tensor:
        check_whole_batch(at, planned, "sums over")
        return x.sum(0, keepdim=True).expand_as(x)

    return forward


def _covariance(x1: Tensor, x2: Tensor, biased: bool) -> Tensor:
    x1, x2 = x1.flatten(1), x2.flatten(1)
    products = (x1 - x1.mean(1, keepdim=True)) * (x2 - x2.mean(1, keepdim=True))
    return products.sum(1, keepdim=True) / (x1.shape[1] - (not biased))


@lowers(Covariance)
def covariance(planned: PlannedLayer) -> Forward:
    """Over the entries of the sample."""
    biased = cast("Covariance", planned.layer).biased
    return lambda x1, x2: _covariance(x1, x2, biased)


@lowers(Variance)
def variance(planned: PlannedLayer) -> Forward:
    """Over the entries of the sample."""
    biased = cast("Variance", planned.layer).biased
    return lambda x: _covariance(x, x, biased)


@lowers(ChannelwiseMean)
def channelwise_mean(planned: PlannedLayer) -> Forward:
    """Mean of each slice of the first dimension."""
    return lambda x: by_channel(x).mean(2)


@lowers(RowwiseWeightsNorms, with_pass=True)
def rowwise_weights_norms(planned: PlannedLayer) -> Forward:
    """Euclidean norm of each row of weights, for every sample."""
    return lambda at, weights: torch.linalg.vector_norm(weights, dim=1).expand(at.samples, -1)
