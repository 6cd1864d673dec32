"""Ranks that need each other within a forward pass go through the module as often, each time together.

They do where weights are cut up among them, and where they take the statistics of batch norm together. A rank that has
fewer parts of a mini-batch than another, or none, goes through the module with a sample that counts nothing: its
backward pass begins with 0, statistics leave it out, and buffers are put back.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # the base of all of them
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]  # as above

from descend.train.numerics import BufferSnapshot

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import torch
    from torch import nn

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.micro_batch import MicroBatch

__all__ = ["Lockstep"]


class Lockstep:
    """What makes up for parts that this rank does not have.

    Args:
        module: The module.
        process: This process among its ranks.
        jointly: Whether layers that take statistics do so over all ranks, so that they have to be in training mode.
    """

    def __init__(self, module: nn.Module, process: Communicator, jointly: bool) -> None:
        self._module, self._process, self._jointly = module, process, jointly

    def spare(self, batch: Batch, parts: Sequence[MicroBatch], step: int) -> list[MicroBatch]:
        """What this rank lets through the module beside its own parts, so that all ranks go through it as often.

        Args:
            batch: This rank's share.
            parts: Its parts.
            step: Updates applied so far.
        """
        counts: list[int] = self._process.all_gather_object(len(parts))
        most = max(counts)
        if min(counts) == most:
            return []
        given = parts[0].fields if parts else {k: self._process.to_device(v) for k, v in batch.fields.items()}
        one = {name: _one(values) for name, values in given.items()}
        if not min(counts):
            self._process.broadcast(next(rank for rank, count in enumerate(counts) if count), one.values())
        from descend.train.micro_batch import MicroBatch  # which knows this module

        return [MicroBatch(one, batch, step, 1, 1, 0, counts=False)] * (most - len(parts))

    @contextmanager
    def no_side_effects(self) -> Generator[None]:
        """Within this no buffer is changed, and layers that would take statistics of one sample use those they have."""
        buffers = BufferSnapshot(self._module)
        norms = [] if self._jointly else [part for part in self._module.modules() if _takes_statistics(part)]
        modes = [part.training for part in norms]
        buffers.keep()
        _set_modes(norms, [False] * len(norms))
        try:
            yield
        finally:
            _set_modes(norms, modes)
            buffers.restore()


def _one(values: torch.Tensor) -> torch.Tensor:
    return values[:1].clone() if len(values) else values.new_zeros(1, *values.shape[1:])


def _takes_statistics(part: nn.Module) -> bool:
    return isinstance(part, (_BatchNorm, _InstanceNorm))


def _set_modes(parts: Iterable[nn.Module], modes: Iterable[bool]) -> None:
    for part, training in zip(parts, modes, strict=True):
        part.training = training
