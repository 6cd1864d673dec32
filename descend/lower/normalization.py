"""Layers that bring numbers to a common size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch.nn import functional

from descend.errors import Unsupported
from descend.graph import (
    BatchNormalization,
    Dropout,
    EntrywiseBatchNormalization,
    InstanceNorm,
    LayerNorm,
    LocalResponseNormalization,
    SeluDropout,
)
from descend.lower.formats import by_channel, may_branch
from descend.lower.forward_context import stream_of
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward

__all__ = ["check_whole_batch"]


def check_whole_batch(at: ForwardContext, planned: PlannedLayer, why: str, remedy: str = "") -> None:
    """Refuse a part of a mini-batch; `remedy` is one more thing to do about it.

    Raises:
        Unsupported: the pass is over fewer samples than the mini-batch has.
    """
    if at.samples != at.batch_size:
        raise Unsupported(
            f"layer '{planned.name}' ({type(planned.layer).__name__}) {why} the whole mini-batch of {at.batch_size} "
            f"samples and is given {at.samples} of them: train with one part and one rank{remedy}, or a smaller "
            "mini-batch"
        )


def _groups(at: ForwardContext, planned: PlannedLayer, x: Tensor) -> tuple[Tensor, ...]:
    """The samples that share statistics, in the order of the mini-batch; what is left over is a group of its own.

    Raises:
        Unsupported: this part of the mini-batch begins or ends inside a group.
    """
    if not at.group_size:
        check_whole_batch(at, planned, "takes statistics over", ", declare the model's batch_norm_group_size")
        return (x,)
    at_end = at.position + at.samples == at.batch_size
    if at.position % at.group_size or (at.samples % at.group_size and not at_end):
        raise Unsupported(
            f"layer '{planned.name}' ({type(planned.layer).__name__}) takes statistics over groups of {at.group_size} "
            f"samples and is given the {at.samples} samples from {at.position} on: parts must be made of whole groups"
        )
    return x.split(at.group_size)


def _follow(running: Tensor, batch: Tensor, decay: float) -> None:
    """running ← decay · running + (1 − decay) · batch."""
    with torch.no_grad():
        running.mul_(decay).add_(batch.detach(), alpha=1.0 - decay)


class _Running(NamedTuple):
    """What a layer remembers of each channel, and how well; see `_follow`."""

    mean: Tensor
    variance: Tensor
    decay: float


def _normalized(x: Tensor, scale: Tensor, bias: Tensor, running: _Running, eps: float, correction: int) -> Tensor:
    """What batch normalization means, with the running values brought up to date."""
    variance, mean = torch.var_mean(x, (0, *range(2, x.dim())), correction=correction)
    variance = variance.clamp_min(eps)
    _follow(running.mean, mean, running.decay)
    _follow(running.variance, variance, running.decay)
    return _affine(x, mean, scale * (variance + eps).rsqrt(), bias)


def _affine(x: Tensor, mean: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    """(x − mean) · factor + bias in each channel; in this order a large mean costs no digits."""
    shape = (-1, *(1,) * (x.dim() - 2))
    return (x - mean.view(shape)) * factor.view(shape) + bias.view(shape)


def _normalized_by_torch(
    x: Tensor, scale: Tensor, bias: Tensor, running: _Running, eps: float, correction: int
) -> Tensor | None:
    """The same by torch's kernel, 4 times as fast; None where a variance is below ε, which that kernel does not know.

    It divides by n. With c = n / (n − correction) the variance wanted is c times its own, and
    1 / √(c σ² + ε) = c^−½ / √(σ² + ε / c), so it is given ε / c and the scale times c^−½. It tells of 1 / √(σ² + ε /
    c), which is above 1 / √(2 ε / c) where c σ² is below ε. Its own running variance is that of a division by n − 1.
    """
    n = x.numel() // x.shape[1]
    c = n / (n - correction)
    mean, variance = running.mean.clone(), running.variance.clone()
    # Positions: training, share of the new value, epsilon.
    y, _, inverse = torch.native_batch_norm(x, scale * c**-0.5, bias, mean, variance, True, 1 - running.decay, eps / c)
    if not float(inverse.amax()) ** 2 * 2 * eps <= c:
        return None
    running.mean.copy_(mean)
    if correction:
        running.variance.copy_(variance)
    else:
        kept = running.variance * running.decay
        running.variance.copy_(kept + (variance - kept) * ((n - 1) / n))
    return y


@lowers(BatchNormalization, with_pass=True)
def batch_normalization(planned: PlannedLayer) -> Forward:
    """By mean and variance of each channel over group and space; by the running ones in evaluation."""
    layer = cast("BatchNormalization", planned.layer)
    decay, eps = float(layer.setting("decay")), float(layer.setting("epsilon"))
    correction = 0 if layer.no_bessel_correction else 1

    def forward(at: ForwardContext, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if not at.training:
            return functional.batch_norm(x, mean, variance, scale, bias, eps=eps)
        return _joined([of_group(group, scale, bias, mean, variance) for group in _groups(at, planned, x)])

    def of_group(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if x.numel() // x.shape[1] == 1:  # of one number there is no variance
            return _affine(x, x.mean((0, *range(2, x.dim()))), scale * (1.0 + eps) ** -0.5, bias)
        running = _Running(mean, variance, decay)
        fast = _normalized_by_torch(x, scale, bias, running, eps, correction) if may_branch(x) else None
        return _normalized(x, scale, bias, running, eps, correction) if fast is None else fast

    return forward


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@lowers(EntrywiseBatchNormalization, with_pass=True)
def entrywise_batch_normalization(planned: PlannedLayer) -> Forward:
    """By mean and variance of each entry over the group; by the running ones in evaluation."""
    layer = cast("EntrywiseBatchNormalization", planned.layer)
    decay, eps = layer.decay, layer.epsilon

    def forward(at: ForwardContext, x: Tensor, running_mean: Tensor, running_variance: Tensor) -> Tensor:
        if not at.training:
            return (x - running_mean) * (running_variance + eps).rsqrt()
        return _joined([of_group(group, running_mean, running_variance) for group in _groups(at, planned, x)])

    def of_group(x: Tensor, running_mean: Tensor, running_variance: Tensor) -> Tensor:
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
        entries = by_channel(x)
        return functional.layer_norm(entries, entries.shape[2:], eps=eps).view_as(x)

    return forward


@lowers(LocalResponseNormalization)
def local_response_normalization(planned: PlannedLayer) -> Forward:
    """By the sum of squares over neighbouring channels, α undivided."""
    layer = cast("LocalResponseNormalization", planned.layer)
    reach = layer.window_width // 2

    def forward(x: Tensor) -> Tensor:
        squares = functional.pad(by_channel(x), (0, 0, reach, reach)).square()
        sums = squares.unfold(1, 2 * reach + 1, 1).sum(-1).view_as(x)
        return x * (layer.lrn_k + layer.lrn_alpha * sums) ** -layer.lrn_beta

    return forward


# ---- layers that drop entries in training


@lowers(Dropout, with_pass=True)
def dropout(planned: PlannedLayer) -> Forward:
    """x / q where an entry is kept and 0 elsewhere; x in evaluation."""
    q = cast("Dropout", planned.layer).keep_prob
    stream = stream_of(planned.name)

    def forward(at: ForwardContext, x: Tensor) -> Tensor:
        if not at.training or not 0 < q < 1:
            return x
        return (x / q).where(at.chance(stream, planned.output_shape, q), 0.0)

    return forward


@lowers(SeluDropout, with_pass=True)
def selu_dropout(planned: PlannedLayer) -> Forward:
    """a x + b where an entry is kept and a α' + b elsewhere; x in evaluation."""
    layer = cast("SeluDropout", planned.layer)
    q, dropped = layer.keep_prob, layer.dropped_value()
    stream = stream_of(planned.name)

    def forward(at: ForwardContext, x: Tensor) -> Tensor:
        if not at.training or not 0 < q < 1:
            return x
        a = (q + dropped**2 * q * (1 - q)) ** -0.5
        return a * x.where(at.chance(stream, planned.output_shape, q), dropped) - a * (1 - q) * dropped

    return forward
