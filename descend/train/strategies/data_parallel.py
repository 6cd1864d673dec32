"""What the ranks of a run agree on in each step: sums, whether to stop, and buffers that are the same on all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.runtime.dtensor import is_sharded
from descend.train.memory import RemoteOutOfMemory
from descend.train.nonfinite_report import diagnose_batch, has_nonfinite_input
from descend.train.sharding import Sharding
from descend.train.strategies.buckets import GradientReducer
from descend.train.strategies.buffers import BufferSynchronizer

if TYPE_CHECKING:
    from descend.data import Batch
    from descend.train.session import Session

__all__ = ["DataParallelStep"]

_FLAGS = 2  # numbers that every step brings along: short of memory, buffers changed


class DataParallelStep:
    """One rank among several; see `reduction.py` and `statistics.py` for gradients and buffers.

    Args:
        session: The run.

    Attributes:
        signal: The signal that has asked a rank for an end, known to all ranks since they last met; or None.
        reduction: What sums the gradients.
        divided_by: What gradients have been divided by where they are put in their places.
        sharding: Which rank keeps the optimizer's state of which weights; None where all keep all of it.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._process = session, session.communicator
        self.signal: str | None = None
        self.divided_by = 1.0
        summed_here = {
            name: p for name, p in session.weights.items() if not is_sharded(p)
        }  # FSDP2 sums those of its own
        self.reduction = GradientReducer(
            summed_here, session.communicator, summed=session.vote is None, say=session.say
        )
        self.sharding = Sharding(session.weights, session.communicator) if session.shard_optimizer else None
        self._buffers = BufferSynchronizer(session.task.module, session.running, session.communicator)
        self._others = False

    def synchronize(self, at: str, values: torch.Tensor | None = None) -> torch.Tensor:
        """Wait for all ranks to come to the same place; what they bring, added up.

        Raises:
            DataError: they are at different places.
        """
        asks = self._session.stop_requested() is not None
        room = 2 + _FLAGS + len(self.reduction.names)
        met = self._process.synchronize(at, asks, values, room)
        if met.stop_requested and self.signal is None:
            self.signal = next(name for name in self._process.all_gather_object(self._session.stop_requested()) if name)
        return met.sums

    def begin(self) -> None:
        """A step begins."""
        self._buffers.keep()

    def begin_accumulation(self, batch: Batch) -> None:
        """The gradient of a step is worked out, perhaps once more.

        Most losses count samples, whose number all ranks know beforehand. Gradients are divided by the largest power of
        two within it on their way, which changes no bit of their sum; where that is the number itself, they need not be
        gone through again.
        """
        elsewhere = self._session.vote or self._session.cut  # voters sum nothing, and FSDP2 by itself
        self.divided_by = 1.0 if elsewhere else float(1 << batch.size.bit_length() - 1)
        self.reduction.begin(self.divided_by)

    def enable_overlap(self) -> None:
        """The last of this rank's backward passes begins; whatever gradient is whole may be sent."""
        self.reduction.watch()

    def all_reduce(self, batch: Batch, sums: torch.Tensor, short: BaseException | None = None) -> torch.Tensor:
        """Sum the gradients, and numerator and denominator, over ranks, which meet while gradients are on their way.

        Args:
            batch: This rank's share.
            sums: (2,) float64, numerator and denominator of this rank.
            short: That memory has run out here.

        Returns:
            (2,) float64 on the CPU.

        Raises:
            OutOfMemoryElsewhere: it has on another rank.
            DataError: the ranks do not have the same mini-batch.
        """
        self.reduction.send()
        flags = torch.tensor([short is not None, self._buffers.others_changed()], dtype=torch.float64)
        brought = torch.cat([sums.cpu(), flags, self.reduction.counts()])
        last = ", the last" if batch.last else ""
        at = f"epoch {batch.epoch}, mini-batch {batch.step} of {batch.size} samples{last}"
        met = self.synchronize(at, brought)
        self.reduction.wait()
        if short is not None:
            raise short
        if met[2] > 0:
            raise RemoteOutOfMemory("another rank has no memory left")
        self._others = bool(met[3] > 0)
        self.reduction.scatter(met[2 + _FLAGS :])
        return met[:2]

    def end(self, batch: Batch) -> None:
        """A step has been made: bring the buffers together."""
        self._buffers.settle(batch, self._others)

    def diagnose(self, batch: Batch) -> list[str]:
        """What there is to say about the samples of a step whose gradient is not finite: whose rank they were on."""
        local = self.reduction.local.values()
        cut = self._session.cut is not None  # then nobody has seen what its own samples give
        own = any(not bool(torch.isfinite(_values(gradient)).all()) for gradient in local) or (
            cut and has_nonfinite_input(batch)
        )
        told = self._process.all_gather_object(diagnose_batch(batch) if own else None)
        lines = [f"rank {rank}: {line}" for rank, line in enumerate(told) if line]
        if cut:
            return lines or ["the samples of all ranks are finite; FSDP2 sums gradients, so nobody knows whose it was"]
        return lines or ["the gradients of all ranks are finite, and their sum is not"]


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
