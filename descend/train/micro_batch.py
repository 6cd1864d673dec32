"""A mini-batch goes through the module in parts, in training and in evaluation alike."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from descend.train.memory import part_size
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.data import Batch
    from descend.train.session import Session
    from descend.train.task import Losses, Totals

__all__ = ["MicroBatch", "accumulate", "forward", "padding_micro_batches", "run_padding", "split_into_micro_batches"]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of a mini-batch that go through the module at once.

    Attributes:
        fields: (count, *shape) tensors by name, on the device of the run.
        batch: This rank's share of the mini-batch.
        step: Updates applied so far.
        start: Where the samples begin in the share.
        count: Number of samples.
        position: Where they begin in the mini-batch of all ranks.
        counts: Whether they count; see `turns.py`.
    """

    fields: dict[str, torch.Tensor]
    batch: Batch
    step: int
    start: int
    count: int
    position: int
    counts: bool = True


def split_into_micro_batches(session: Session, batch: Batch, unit: int | None = 1) -> Iterator[MicroBatch]:
    """The mini-batch cut into micro-batches of whole units, on the device of the run."""
    count, step = len(batch.ids), session.contexts[Mode.TRAIN].step
    if not count:  # of a rank without samples; modules need not take empty inputs
        return
    fields = {name: session.communicator.to_device(array) for name, array in batch.fields.items()}
    before = batch.position
    size = part_size(session.micro_batch_size, count, unit)
    if size >= count:
        yield MicroBatch(fields, batch, step, 0, count, before)
        return
    for start in range(0, count, size):
        some = {name: tensor[start : start + size] for name, tensor in fields.items()}
        yield MicroBatch(some, batch, step, start, min(size, count - start), before + start)


def forward(session: Session, part: MicroBatch) -> Losses:
    """Let a part go through the module."""
    session.before_part(part)
    return session.task.losses(part.fields)


def accumulate(totals: Totals, losses: Losses) -> None:
    """Add what came of a part to the sums."""
    totals.add("objective", losses.objective)
    for name, ratio in losses.metrics.items():
        totals.add(name, ratio)


def padding_micro_batches(session: Session, batch: Batch, some: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Parts that count nothing, where all ranks have to go through the module as often."""
    return session.turns.spare(batch, some, session.contexts[Mode.TRAIN].step) if session.turns else []


def run_padding(session: Session, some: Sequence[MicroBatch], backward: bool = False) -> None:
    """Go through the module with parts that count nothing."""
    for part in some:
        trace = session.turns.no_side_effects() if session.turns else contextlib.nullcontext()
        with trace, session.watch.paused():
            top = forward(session, part).objective.numerator
            if backward and top.requires_grad:
                with session.cut.backward() if session.cut else contextlib.nullcontext():
                    torch.autograd.backward(top, torch.zeros_like(top))
