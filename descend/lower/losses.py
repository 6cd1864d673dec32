"""Losses and accuracies: (samples, 1), one number for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from descend.graph import (
    BatchwiseReduceSum,
    CategoricalAccuracy,
    ChannelwiseMean,
    Covariance,
    CrossEntropy,
    L1Norm,
    L2Norm2,
    MeanAbsoluteError,
    MeanSquaredError,
    MultiDimReduction,
    Reduction,
    RowwiseWeightsNorms,
    TopKCategoricalAccuracy,
    Variance,
)
from descend.lower.formats import by_channel, may_branch
from descend.lower.indexing import whole_indices
from descend.lower.normalization import check_whole_batch
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward

__all__ = ["cross_entropy_of_positive"]


@lowers(CrossEntropy)
def cross_entropy(planned: PlannedLayer) -> Forward:
    """−Σ label log(prediction), without the terms whose label is 0."""
    if cast("CrossEntropy", planned.layer).use_labels:
        return _cross_entropy_of_indices

    def forward(prediction: Tensor, label: Tensor) -> Tensor:
        if may_branch(prediction) and float(prediction.detach().amin()) > 0:
            return cross_entropy_of_positive(prediction, label)
        # A 0 beside a label of 0 is set to 1 before the logarithm: 0 · log 0 and its gradient would be NaN.
        logarithm = prediction.where((label != 0) | (prediction > 0), 1.0).log()
        return -(label * logarithm).flatten(1).sum(1, keepdim=True)

    return forward


def cross_entropy_of_positive(prediction: Tensor, label: Tensor) -> Tensor:
    """The same in one kernel where no prediction is 0, as behind a Softmax."""
    return -torch.xlogy(label, prediction).flatten(1).sum(1, keepdim=True)


def _cross_entropy_of_indices(prediction: Tensor, label: Tensor) -> Tensor:
    """The same with class indices (samples, 1, *space) for labels and classes along the first dimension.

    An index out of range is not a class, as in OneHot, and adds nothing.
    """
    index, valid = whole_indices(label, prediction.shape[1])
    return -prediction.gather(1, index).where(valid, 1.0).log().flatten(1).sum(1, keepdim=True)


@lowers(MeanSquaredError)
def mean_squared_error(planned: PlannedLayer) -> Forward:
    """Mean over the sample of (prediction − label)²."""
    return lambda prediction, label: (prediction - label).square().flatten(1).mean(1, keepdim=True)


@lowers(MeanAbsoluteError)
def mean_absolute_error(planned: PlannedLayer) -> Forward:
    """Mean over the sample of |prediction − label|."""
    return lambda prediction, label: (prediction - label).abs().flatten(1).mean(1, keepdim=True)


@lowers(L2Norm2)
def l2_norm2(planned: PlannedLayer) -> Forward:
    """Σ x²."""
    return lambda x: x.square().flatten(1).sum(1, keepdim=True)


@lowers(L1Norm)
def l1_norm(planned: PlannedLayer) -> Forward:
    """Σ |x|."""
    return lambda x: x.abs().flatten(1).sum(1, keepdim=True)


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the first largest entry of each sample, and whether none is NaN, (samples, 1) each."""
    entries = x.detach().flatten(1)
    place = entries.argmax(1, keepdim=True)  # that of a NaN where there is one
    largest = entries.gather(1, place)
    return place, largest == largest


@lowers(CategoricalAccuracy)
def categorical_accuracy(planned: PlannedLayer) -> Forward:
    """1 where the largest entries are at the same place, the first of equal ones, and none is NaN."""

    def forward(prediction: Tensor, label: Tensor) -> Tensor:
        place, is_number = _largest(prediction)
        wanted, is_class = _largest(label)
        return ((place == wanted) & is_number & is_class).to(prediction.dtype)

    return forward


@lowers(TopKCategoricalAccuracy)
def top_k_categorical_accuracy(planned: PlannedLayer) -> Forward:
    """1 where fewer than k entries beat the label's and none is NaN; of equal ones the smaller index wins."""
    k = cast("TopKCategoricalAccuracy", planned.layer).k

    def forward(prediction: Tensor, label: Tensor) -> Tensor:
        scores = prediction.detach().flatten(1)
        place, is_class = _largest(label)
        own = scores.gather(1, place)
        earlier = torch.arange(scores.shape[1], device=scores.device) < place
        beaten = (scores > own) | ((scores == own) & earlier)
        _, is_number = _largest(prediction)
        return ((beaten.sum(1, keepdim=True) < k) & is_number & is_class).to(prediction.dtype)

    return forward


# ---- layers that make few numbers of many


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
