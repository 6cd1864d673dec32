"""Batch norm takes its statistics over what goes through the module at once; what follows from that is said early."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # the base of all of them

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

    from descend.data import Feed
    from descend.train.loop import Part

__all__ = ["BatchNormWatch"]


class BatchNormWatch:
    """Finds in the first step that a later part of one sample will leave batch norm without statistics.

    Args:
        module: Its batch norm layers are watched for one forward pass.
        feed: The training data.
        micro_batch_size: Samples that go through the module at once, where that is set.

    Warns:
        UserWarning: micro-batches change the statistics, and with them the result.
    """

    def __init__(self, module: nn.Module, feed: Feed, micro_batch_size: int | str | None) -> None:
        layers = {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}
        cut = isinstance(micro_batch_size, int) and micro_batch_size < (feed.first_size or micro_batch_size)
        if layers and cut:
            warnings.warn(
                f"'{next(iter(layers))}' normalizes over the {micro_batch_size} samples of a micro-batch and not over "
                "the batch, so the result depends on micro_batch_size",
                stacklevel=3,
            )
        self._count = 0
        self._sizes = f"{feed.num_samples} samples, batch_size={feed.first_size}, micro_batch_size={micro_batch_size}"
        self._hooks = [
            layer.register_forward_pre_hook(self._look(name))
            for name, layer in layers.items()
            if 1 in _parts(feed, micro_batch_size)
        ]

    def begin(self, part: Part) -> None:
        """Stop watching once a whole part has gone through."""
        if self._count:
            self.close()
        self._count = part.count

    def close(self) -> None:
        """Leave the layers as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _look(self, name: str) -> Any:
        def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            values_of_a_sample = inputs[0].numel() // inputs[0].shape[1] // self._count
            if layer.training and values_of_a_sample == 1:
                raise ConfigurationError(
                    f"a part of a batch has 1 sample ({self._sizes}), and '{name}' ({type(layer).__name__}) needs more "
                    "than 1 value of each channel for its statistics: choose sizes without such a remainder, or leave "
                    "it out with DataLoader(..., drop_last=True)"
                )

        return look


def _parts(feed: Feed, micro_batch_size: int | str | None) -> set[int]:
    """Sizes of the last part of each batch."""
    sizes = {size for size in (feed.first_size, feed.last_size) if size}
    if isinstance(micro_batch_size, int):
        return {size % micro_batch_size or min(size, micro_batch_size) for size in sizes}
    return sizes
