"""Lockstep: keeps ranks together where forward passes contain collectives, as FSDP and synchronized batch norm do.

A rank with fewer micro-batches than another, or none, runs padding: a sample that does not count. Its backward pass
begins with 0, statistics leave it out, and buffers are restored.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from descend.torch_private import norm_class
from descend.train.buffer_snapshot import BufferSnapshot
from descend.train.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import torch
    from torch import nn

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = ["no_side_effects", "padding_micro_batches"]


def padding_micro_batches(
    batch: Batch, micro_batches: Sequence[MicroBatch], step: int, communicator: Communicator
) -> list[MicroBatch]:
    """Micro-batches that do not count, so that this rank has as many as the rank that has most. All ranks call it.

    Args:
        batch: This rank's share.
        micro_batches: Its micro-batches.
        step: Updates applied so far.
        communicator: The ranks.
    """
    counts: list[int] = communicator.all_gather_object(len(micro_batches))
    most = max(counts)
    if min(counts) == most:
        return []
    given = micro_batches[0].fields if micro_batches else communicator.to_device(batch.fields)
    one = {name: _first(values) for name, values in given.items()}
    if not min(counts):
        communicator.broadcast(next(rank for rank, count in enumerate(counts) if count), one.values())
    return [MicroBatch(one, batch, step, 1, 1, 0, counts=False)] * (most - len(micro_batches))


@contextmanager
def no_side_effects(module: nn.Module, keep_training: bool) -> Generator[None]:
    """Within this block no buffer changes, and layers that take statistics use those they have.

    Args:
        module: The module.
        keep_training: Whether layers take statistics over all ranks, so that they must stay in training mode.
    """
    buffers = BufferSnapshot(module)
    norms = [] if keep_training else [part for part in module.modules() if _takes_statistics(part)]
    modes = [part.training for part in norms]
    buffers.keep()
    _set_modes(norms, [False] * len(norms))
    try:
        yield
    finally:
        _set_modes(norms, modes)
        buffers.restore()


def _first(values: torch.Tensor) -> torch.Tensor:
    return values[:1].clone() if len(values) else values.new_zeros(1, *values.shape[1:])


def _takes_statistics(part: nn.Module) -> bool:
    return isinstance(part, norm_class())


def _set_modes(parts: Iterable[nn.Module], modes: Iterable[bool]) -> None:
    for part, training in zip(parts, modes, strict=True):
        part.training = training
