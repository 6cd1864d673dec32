"""A mini-batch goes through the module in micro-batches, in training, evaluation and inference alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.train.memory import part_size

if TYPE_CHECKING:
    import torch

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = ["MicroBatch", "split_into_micro_batches"]


@dataclass(slots=True)  # a frozen one takes three times as long to make
class MicroBatch:
    """Samples of a mini-batch that go through the module at once.

    Attributes:
        fields: (count, *shape) tensors by name, on the device of the run.
        batch: This rank's share of the mini-batch.
        step: Updates applied so far.
        start: Where the samples begin in the share.
        count: Number of samples.
        position: Where they begin in the mini-batch of all ranks.
        index: Number of this micro-batch in the share, from 0.
        of: How many micro-batches the share has.
        kept: Samples before this mini-batch that belong to the same update.
        counts: Whether its samples count; padding, which keeps ranks in lockstep, does not.
    """

    fields: dict[str, torch.Tensor]
    batch: Batch
    step: int
    start: int
    count: int
    position: int
    index: int = 0
    of: int = 1
    kept: int = 0
    counts: bool = True

    @property
    def draw_position(self) -> int:
        """Where the samples begin in the update, of which random numbers are a function."""
        return self.kept + self.position


def split_into_micro_batches(
    batch: Batch, communicator: Communicator, size: int | None, unit: int | None = 1, step: int = 0, kept: int = 0
) -> list[MicroBatch]:
    """The micro-batches of a mini-batch, on the device of the run.

    Args:
        batch: This rank's share; a share without samples has no micro-batches, since modules need not take empty
            inputs.
        communicator: Knows the device.
        size: Samples of a micro-batch; None for all.
        unit: Micro-batches are made of whole units of so many samples; None where the mini-batch cannot be split.
        step: Updates applied so far.
        kept: Samples before this mini-batch that belong to the same update.
    """
    count = len(batch.ids)
    if not count:
        return []
    fields = communicator.to_device(batch.fields)
    if size is None or (size := part_size(size, count, unit)) >= count:
        return [MicroBatch(fields, batch, step, 0, count, batch.position, kept=kept)]
    starts = range(0, count, size)
    return [
        MicroBatch(
            fields={name: tensor[start : start + size] for name, tensor in fields.items()},
            batch=batch,
            step=step,
            start=start,
            count=min(size, count - start),
            position=batch.position + start,
            index=index,
            of=len(starts),
            kept=kept,
        )
        for index, start in enumerate(starts)
    ]
