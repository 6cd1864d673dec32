"""Batch norm takes its statistics over groups of samples of a declared size, or over what goes through at once.

    a group       so many samples in the order of the mini-batch; what is left over is a group of its own
    training      each group is normalized by its own mean and variance, as though the layer had been called on the
                  groups one after the other; running statistics take them in that order
    evaluation    by the running statistics; the group has no part in it

Micro-batches are made of whole groups, so they change nothing. Without a group, micro-batches of a size that was asked
for are the groups, with a warning, and none are made where memory runs out.

Several ranks have whole groups, as long as there are as many of these as ranks. Where there are fewer, ranks have equal
shares and take the statistics of a group together; then all of them go through the module once in each step.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # the base of all of them
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]  # as above

from descend.errors import ConfigurationError
from descend.experiment.micro_batch_unit import GROUP, last_group, tell_of_whole_groups
from descend.train.patches.sync_batch_norm import GroupRows, normalize
from descend.train.strategies.buffers import RunningStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train.micro_batch import MicroBatch
    from descend.train.patches.sync_batch_norm import Moments

__all__ = ["BatchNormGroups", "share_unit", "spans_ranks"]


def share_unit(
    module: nn.Module, micro_batch_size: int | str | None, group_size: int | None, batch_size: int | None, ranks: int
) -> int:
    """Samples of a mini-batch that stay together on one rank: those that share statistics and do so there."""
    if spans_ranks(module, micro_batch_size, group_size, batch_size, ranks):
        return 1
    if group_size or not any(_takes_statistics(part) for part in module.modules()):
        return group_size or 1
    return micro_batch_size if isinstance(micro_batch_size, int) else 1


def spans_ranks(
    module: nn.Module, micro_batch_size: int | str | None, group_size: int | None, batch_size: int | None, ranks: int
) -> bool:
    """Whether groups lie on several ranks: without micro-batches, where there are fewer groups than ranks.

    Running statistics of instance norm are means over the samples of a group, which no two ranks put together.
    """
    layers = [part for part in module.modules() if _takes_statistics(part)]
    if ranks == 1 or isinstance(micro_batch_size, int) or not layers:
        return False
    if any(isinstance(part, _InstanceNorm) for part in layers):
        return False
    return group_size is None or (batch_size is not None and -(-batch_size // group_size) < ranks)


class BatchNormGroups:
    """Takes over the batch norm layers of a module until it is closed.

    Args:
        module: Its layers get a `forward` of their own for the time being.
        feed: The training data.
        micro_batch_size: Samples that go through the module at once, where that is set.
        group_size: Samples that share statistics; None for those that go through at once.
        together: This process among its ranks, where groups lie on several of them.

    Attributes:
        unit: Samples that micro-batches are made of; None where a mini-batch cannot be cut.
        running: The running statistics of the layers.

    Warns:
        UserWarning: micro-batches change the statistics, and with them the result.

    Raises:
        ConfigurationError: a group that is declared and used by nothing; from `look`, and from a forward pass where
            it could not be known before, a group that leaves one value a channel.
    """

    def __init__(
        self,
        module: nn.Module,
        feed: Feed,
        micro_batch_size: int | str | None,
        group_size: int | None,
        together: Communicator | None = None,
    ) -> None:
        self._layers: list[tuple[str, Any]] = [
            (name, part) for name, part in module.named_modules() if _takes_statistics(part)
        ]
        self._group, self._count, self._together = group_size, 0, together
        self._part: MicroBatch | None = None
        self._wanted = micro_batch_size if isinstance(micro_batch_size, int) else None
        if group_size and not self._layers:
            raise ConfigurationError(
                f"batch_norm_group_size={group_size}: {type(module).__name__} has no batch norm layer; leave it out"
            )
        self._told = False
        self._warn(feed.first_size)
        self.unit = (group_size or (self._wanted and 1)) if self._layers else 1
        self.unit = None if together else self.unit
        if self._wanted:
            tell_of_whole_groups(self._wanted, self.unit)
        self._sizes = f"{feed.num_samples} samples, batch_size={feed.first_size}, {self._means()}"
        self._alone = 1 in _last_groups(feed, group_size or self._wanted)
        everywhere = group_size or self._alone or feed.first_size is None or together
        self._taken = self._layers if everywhere else []
        self._followed = 0
        tracked = [(name, layer) for name, layer in self._layers if layer.track_running_stats and not together]
        self.running = [self._running(name, layer) for name, layer in tracked]
        for name, layer in self._taken:
            layer.forward = self._replacement(name, layer)

    @torch.no_grad()
    def look(self, pass_through: Callable[[], None]) -> None:
        """Where a batch will leave a group of 1 sample, see what layers have of one, before anything else happens.

        Args:
            pass_through: Lets one sample go through the module, which is in evaluation mode.

        Raises:
            ConfigurationError: a layer has one value of each channel. What else is wrong is left to the run to tell.
        """
        if not self._alone:
            return
        starved: list[tuple[str, Any]] = []

        def hook(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
            return lambda layer, given: starved.append((name, layer)) if given[0].numel() == given[0].shape[1] else None

        with contextlib.ExitStack() as hooks:
            for name, layer in self._layers:
                hooks.callback(layer.register_forward_pre_hook(hook(name)).remove)
            with contextlib.suppress(Exception):
                pass_through()
        for name, layer in starved:
            raise self._alone_error(name, layer)

    def begin(self, part: MicroBatch) -> None:
        """Say which samples the next forward pass is for."""
        self._count, self._part = part.count, part
        if not (self._layers and self._layers[0][1].training):
            return
        groups = -(-part.count // self._group) if self._group else 1
        self._followed = groups + (self._followed if part.start else 0)
        self._warn(len(part.batch.ids))

    def close(self) -> None:
        """Leave the layers as they were."""
        for _, layer in self._taken:
            del layer.forward  # what is left is the method of its class

    def _warn(self, size: int | None) -> None:
        """Say once that a batch of this size, where it is known, will be cut without a group."""
        if self._told or self._group or not (self._layers and size and self._wanted and self._wanted < size):
            return
        self._told = True
        name, layer = self._layers[0]
        warnings.warn(
            f"'{name}' ({type(layer).__name__}) normalizes over the {self._wanted} samples of a micro-batch and not "
            f"over the batch, so the result depends on micro_batch_size: {GROUP}",
            stacklevel=4,
        )

    def _means(self) -> str:
        if self._group:
            return f"batch_norm_group_size={self._group}"
        return f"micro_batch_size={self._wanted}" if self._wanted else "a group is the whole batch"

    def _replacement(self, name: str, layer: Any) -> Callable[..., Tensor]:
        original: Callable[[Tensor], Tensor] = layer.forward

        def forward(input: Tensor) -> Tensor:  # noqa: A002  # torch's name for it
            if not layer.training or not self._count:
                return original(input)
            size = self._part.batch.size if self._together and self._part else self._count
            alone = self._alone or last_group(size, self._group) == 1
            if alone and input.numel() == self._count * input.shape[1]:
                raise self._alone_error(name, layer)
            if self._together:
                return self._jointly(name, layer, input, self._together)
            if self._group is None or self._count <= self._group:
                return original(input)
            rows = self._rows(name, layer, input)
            return torch.cat([original(group) for group in input.split(self._group * rows)])

        return forward

    def _jointly(self, name: str, layer: Any, x: Tensor, process: Communicator) -> Tensor:
        """Normalize a layer's input by groups that lie on several ranks."""
        rows = GroupRows(self._rows_of_groups(self._rows(name, layer, x)), self._part is None or self._part.counts)
        y, moments = normalize(x, layer.weight, layer.bias, layer.eps, rows, process)
        if layer.track_running_stats:
            _follow(layer, moments)
        return y

    def _rows_of_groups(self, rows: int) -> list[int]:
        """How many rows this rank has of each group of the mini-batch, with so many of each sample."""
        part = self._part
        if part is None:
            return []
        size = self._group or part.batch.size
        begin, end = part.position, part.position + part.count
        starts = range(0, part.batch.size, size)
        return [max(min(end, start + size) - max(begin, start), 0) * rows for start in starts]

    def _running(self, name: str, layer: Any) -> RunningStatistics:
        prefix = f"{name}." if name else ""
        names = (f"{prefix}running_mean", f"{prefix}running_var")
        counts = isinstance(layer, _BatchNorm)  # instance norm has a counter too, and does not count
        return RunningStatistics(
            names,
            None if layer.momentum is None else 1 - layer.momentum,
            f"{prefix}num_batches_tracked" if counts else None,
            lambda batch: self._followed,
        )

    def _rows(self, name: str, layer: Any, x: Tensor) -> int:
        """Rows of a layer's input that belong to one sample."""
        if len(x) % self._count:
            raise ConfigurationError(
                f"'{name}' ({type(layer).__name__}) is given {len(x)} rows for {self._count} samples, so it is not "
                "clear which of them share statistics: leave out batch_norm_group_size"
            )
        return len(x) // self._count

    def _alone_error(self, name: str, layer: Any) -> ConfigurationError:
        return ConfigurationError(
            f"a batch leaves a group of 1 sample ({self._sizes}), and '{name}' ({type(layer).__name__}) needs more "
            "than 1 value of each channel for its statistics: choose sizes without such a remainder, or leave it out "
            "with DataLoader(..., drop_last=True)"
        )


@torch.no_grad()
def _follow(layer: Any, moments: Moments) -> None:
    """Let running statistics follow groups one after the other, as torch's layer does."""
    unbiased = moments.variance * (moments.values / (moments.values - 1)).unsqueeze(1)
    for mean, variance in zip(moments.mean, unbiased, strict=True):
        layer.num_batches_tracked.add_(1)
        share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        layer.running_mean.lerp_(mean.to(layer.running_mean), share)
        layer.running_var.lerp_(variance.to(layer.running_var), share)


def _takes_statistics(part: nn.Module) -> bool:
    """Whether a layer mixes samples in training: by its output, or by running statistics alone."""
    return isinstance(part, _BatchNorm) or (isinstance(part, _InstanceNorm) and part.track_running_stats)


def _last_groups(feed: Feed, group_size: int | None) -> set[int]:
    """Sizes of the last group of each batch."""
    sizes = {size for size in (feed.first_size, feed.last_size) if size}
    return {last_group(size, group_size) for size in sizes}
