"""Ghost batch norm: statistics over groups of samples of a declared size.

    a group       that many consecutive samples of the mini-batch; the remainder is a group of its own
    training      each group is normalized by its own mean and variance, as if the layer were called on the groups one
                  after the other; running statistics are updated in that order
    evaluation    uses the running statistics, independently of groups

Micro-batches consist of whole groups, so they do not change the result. Without a declared group size, micro-batches of
a requested size are the groups, with a warning, and a mini-batch that does not fit into memory cannot be split.

Each rank has whole groups if there are at least as many groups as ranks. Otherwise ranks have equal shares and compute
the statistics of a group together (synchronized batch norm), with one forward pass of every rank per step.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, warn
from descend.experiment.micro_batch_unit import GROUP, last_group, tell_of_whole_groups
from descend.torch_private import batch_norm_class, instance_norm_class
from descend.train.patches import ReplacedForward
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
    """How many samples of a mini-batch must stay together on one rank: those of a group that does not span ranks."""
    if spans_ranks(module, micro_batch_size, group_size, batch_size, ranks):
        return 1
    if group_size or not any(_takes_statistics(part) for part in module.modules()):
        return group_size or 1
    return micro_batch_size if isinstance(micro_batch_size, int) else 1


def spans_ranks(
    module: nn.Module, micro_batch_size: int | str | None, group_size: int | None, batch_size: int | None, ranks: int
) -> bool:
    """Whether groups span ranks: if there are fewer groups than ranks and no micro-batch size was requested.

    Never with instance norm, whose running statistics are means over the samples of a group on one rank.
    """
    layers = [part for part in module.modules() if _takes_statistics(part)]
    if ranks == 1 or isinstance(micro_batch_size, int) or not layers:
        return False
    if any(isinstance(part, instance_norm_class()) for part in layers):
        return False
    return group_size is None or (batch_size is not None and -(-batch_size // group_size) < ranks)


class BatchNormGroups:
    """Replaces `forward` of the batch norm layers of a module until it is closed.

    Args:
        module: The module.
        feed: The training data.
        micro_batch_size: Requested size of a micro-batch; None or "auto" if not set.
        group_size: Samples that share statistics; None for those of one forward pass.
        together: The communicator, if groups span ranks.

    Attributes:
        has_layers: Whether the module has such layers.
        unit: Samples of a mini-batch that micro-batches must keep together; None if it cannot be split.
        running: The running statistics of the layers.

    Warns:
        UserWarning: the result depends on the micro-batch size.

    Raises:
        ConfigurationError: a group size is declared and the module has no batch norm; in `look`, or in a forward pass
            if it cannot be known before: a group has one value per channel.
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
        self.has_layers = bool(self._layers)
        self._group, self._count, self._together = group_size, 0, together
        self._part: MicroBatch | None = None
        self._wanted = micro_batch_size if isinstance(micro_batch_size, int) else None
        if group_size and not self._layers:
            raise ConfigurationError(
                f"batch_norm_group_size={group_size}: {type(module).__name__} has no batch norm layer; leave it out"
            )
        self._warned = False
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
            layer.forward = ReplacedForward(layer, self._replacement(name, layer))

    @torch.no_grad()
    def look(self, pass_through: Callable[[], None]) -> None:
        """If a batch leaves a group of 1 sample, check that layers have more than one value per channel of a sample.

        Args:
            pass_through: Runs the module, in evaluation mode, on one sample.

        Raises:
            ConfigurationError: a layer has one value per channel. Other errors are left to the run to report.
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
        """Set the samples of the next forward pass."""
        self._count, self._part = part.count, part
        if not (self._layers and self._layers[0][1].training):
            return
        groups = -(-part.count // self._group) if self._group else 1
        self._followed = groups + (self._followed if part.start else 0)
        self._warn(len(part.batch.ids))

    def close(self) -> None:
        """Restore the layers."""
        for _, layer in self._taken:
            del layer.forward  # which leaves the method of its class

    def _warn(self, size: int | None) -> None:
        """Warn once if a batch of this size, if it is known, is split without a declared group size."""
        if self._warned or self._group or not (self._layers and size and self._wanted and self._wanted < size):
            return
        self._warned = True
        name, layer = self._layers[0]
        warn(
            f"'{name}' ({type(layer).__name__}) normalizes over the {self._wanted} samples of a micro-batch and not "
            f"over the batch, so the result depends on micro_batch_size: {GROUP}{self._wanted}"
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
        """Normalize a layer's input by groups that span ranks."""
        rows = GroupRows(self._rows_of_groups(self._rows(name, layer, x)), self._part is None or self._part.counts)
        y, moments = normalize(x, layer.weight, layer.bias, layer.eps, rows, process)
        if layer.track_running_stats:
            _follow(layer, moments)
        return y

    def _rows_of_groups(self, rows: int) -> list[int]:
        """This rank's rows of each group of the mini-batch, with `rows` rows per sample."""
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
        counts = isinstance(layer, batch_norm_class())  # instance norm has a counter but does not update it
        return RunningStatistics(
            names,
            None if layer.momentum is None else 1 - layer.momentum,
            f"{prefix}num_batches_tracked" if counts else None,
            lambda batch: self._followed,
        )

    def _rows(self, name: str, layer: Any, x: Tensor) -> int:
        """Rows of a layer's input per sample."""
        if len(x) % self._count:
            raise ConfigurationError(
                f"'{name}' ({type(layer).__name__}) gets {len(x)} rows for {self._count} samples, so it is not "
                "known which rows share statistics: leave out batch_norm_group_size"
            )
        return len(x) // self._count

    def _alone_error(self, name: str, layer: Any) -> ConfigurationError:
        return ConfigurationError(
            f"a batch leaves a group of 1 sample ({self._sizes}), and '{name}' ({type(layer).__name__}) needs more "
            "than 1 value of each channel for its statistics: choose sizes without such a remainder, or drop it "
            "with DataLoader(..., drop_last=True)"
        )


@torch.no_grad()
def _follow(layer: Any, moments: Moments) -> None:
    """Update running statistics with one group after the other, as torch's layer does."""
    unbiased = moments.variance * (moments.values / (moments.values - 1)).unsqueeze(1)
    for mean, variance in zip(moments.mean, unbiased, strict=True):
        layer.num_batches_tracked.add_(1)
        share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        layer.running_mean.lerp_(mean.to(layer.running_mean), share)
        layer.running_var.lerp_(variance.to(layer.running_var), share)


def _takes_statistics(part: nn.Module) -> bool:
    """Whether a layer mixes samples in training, in its output or in its running statistics."""
    tracks = bool(getattr(part, "track_running_stats", False))
    return isinstance(part, batch_norm_class()) or (isinstance(part, instance_norm_class()) and tracks)


def _last_groups(feed: Feed, group_size: int | None) -> set[int]:
    """Sizes of the last group of each batch."""
    sizes = {size for size in (feed.first_size, feed.last_size) if size}
    return {last_group(size, group_size) for size in sizes}
