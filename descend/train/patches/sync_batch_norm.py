"""Synchronized batch norm: statistics over groups of samples that are spread over several ranks.

For each group, n values of a channel with mean μ and sum of squares S = Σ (x − μ)² on each rank r:

    N = Σ_r n_r        μ = Σ_r n_r μ_r / N        S = Σ_r S_r + n_r (μ_r − μ)²        σ² = S / N
    x̂ = (x − μ) / √(σ² + ε)                       y = w x̂ + b
    ∂x = w / √(σ² + ε) · (∂y − Σ ∂y / N − x̂ Σ (∂y x̂) / N)        with sums over the samples of all ranks

Every rank gathers n, μ and S of all ranks and sums them in the order of ranks, so the result is the same on all ranks
to the bit. Gradients of w and b are those of this rank's samples; they are summed over ranks with all other gradients.

Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, with groups that span ranks; moments are merged as in
Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from descend.runtime import Communicator

__all__ = ["GroupRows", "Moments", "normalize"]


@dataclass(frozen=True)
class GroupRows:
    """How the rows of this rank's input are divided into groups.

    Attributes:
        sizes: This rank's rows of each group of the mini-batch, in order; 0 for a group it has no rows of.
        count: Whether they count; False for padding, which a rank without samples runs.
    """

    sizes: Sequence[int]
    count: bool


class Moments(NamedTuple):
    """The statistics of the groups of a mini-batch, over all ranks; float64.

    Attributes:
        values: (groups,) number of values per channel.
        mean: (groups, channels).
        variance: (groups, channels), biased: divided by the number of values.
    """

    values: Tensor
    mean: Tensor
    variance: Tensor


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rows: GroupRows, process: Communicator
) -> tuple[Tensor, Moments]:
    """Normalize by groups that span ranks. A collective in forward and backward pass: every rank must call it.

    Args:
        x: (rows, channels, *space) of this rank.
        weight: (channels,), or None for 1.
        bias: (channels,), or None for 0.
        eps: ε.
        rows: How the rows are divided into groups.
        process: The communicator.

    Returns:
        The normalized `x`, and the statistics of all groups.
    """
    moments = _moments(x.detach(), rows, process)
    y: Any = _Normalized.apply(x, weight, bias, eps, rows, process, moments)  # pyright: ignore[reportUnknownMemberType]  # untyped in torch
    return y, moments


def _columns(x: Tensor) -> Tensor:
    """(values, channels)."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def _moments(x: Tensor, rows: GroupRows, process: Communicator) -> Moments:
    groups, channels = len(rows.sizes), x.shape[1]
    own = torch.zeros(groups, 1 + 2 * channels, dtype=torch.float64, device=x.device)
    if rows.count:
        for entry, part in zip(own, x.split(list(rows.sizes)), strict=True):
            if len(part):
                values = _columns(part).double()
                mean = values.mean(0)
                entry[0] = len(values)
                entry[1 : 1 + channels] = mean
                entry[1 + channels :] = (values - mean).square().sum(0)
    n, mean, squares = _of_ranks(own, process).split([1, channels, channels], 2)  # (ranks, groups, ...)
    total = n.sum(0)
    joint = (n * mean).sum(0) / total
    spread = (squares + n * (mean - joint).square()).sum(0)
    return Moments(total.squeeze(1), joint, spread / total)


def _of_ranks(own: Tensor, process: Communicator) -> Tensor:
    """(ranks, *shape): the values of every rank; a sum of which all terms but one are 0 is that term to the bit."""
    gathered = own.new_zeros(process.world_size, *own.shape)
    gathered[process.rank] = own
    return process.all_reduce(gathered)


class _Normalized(torch.autograd.Function):
    """x̂ w + b with the gradient over the samples of all ranks."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # torch declares any arguments
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        rows: GroupRows,
        process: Communicator,
        moments: Moments,
    ) -> Tensor:
        """See `normalize`."""
        shape = (-1, x.shape[1], *[1] * (x.dim() - 2))
        scale = (moments.variance + eps).rsqrt()
        sizes = torch.tensor(rows.sizes, device=x.device)
        mean, inverse = (t.repeat_interleave(sizes, 0).to(x.dtype).view(shape) for t in (moments.mean, scale))
        hat = (x - mean) * inverse
        ctx.save_for_backward(hat, inverse, weight)
        ctx.rows, ctx.process, ctx.values, ctx.with_bias = rows, process, moments.values, bias is not None
        y = hat if weight is None else hat * weight.to(x.dtype).view(1, *shape[1:])
        return y.clone() if weight is bias is None else y if bias is None else y + bias.to(x.dtype).view(1, *shape[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        """See the module docstring."""
        hat, inverse, weight = ctx.saved_tensors
        [grad] = gradients
        rows: GroupRows = ctx.rows
        shape, channels = (1, hat.shape[1], *[1] * (hat.dim() - 2)), hat.shape[1]
        of_bias, of_weight = _columns(grad).sum(0), _columns(grad * hat).sum(0)
        by_hat = grad if weight is None else grad * weight.to(grad.dtype).view(shape)
        own = torch.zeros(len(rows.sizes), 2 * channels, dtype=torch.float64, device=grad.device)
        if rows.count:
            sizes = list(rows.sizes)
            for entry, part, normal in zip(own, by_hat.split(sizes), hat.split(sizes), strict=True):
                entry[:channels] = _columns(part).double().sum(0)
                entry[channels:] = _columns(part * normal).double().sum(0)
        means = _of_ranks(own, ctx.process).sum(0) / ctx.values.unsqueeze(1)
        counts = torch.tensor(rows.sizes, device=grad.device)
        mean, along = (
            t.repeat_interleave(counts, 0).to(grad.dtype).view(-1, *shape[1:]) for t in means.split(channels, 1)
        )
        found = (by_hat - mean - hat * along) * inverse if rows.count else by_hat * inverse
        return (
            found,
            None if weight is None else of_weight.to(weight.dtype),
            of_bias.to(grad.dtype) if ctx.with_bias else None,
            None,
            None,
            None,
            None,
        )
