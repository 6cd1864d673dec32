"""Data parallelism: each rank computes a share of every mini-batch, and gradients are all-reduced.

    backward        of the last micro-batch: gradients are sent bucket by bucket as soon as they are complete
    reduce          the rest is sent; ranks synchronize, add up numerator and denominator, and divide once
    optimizer_step  the same on all ranks; then buffers, such as running statistics, are made equal

`buckets.py` sends gradients, `buffers.py` synchronizes buffers, `padding_micro_batches` makes those of all ranks as
many where forward passes communicate.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from descend.runtime.dtensor import is_sharded
from descend.torch_private import norm_class
from descend.train.micro_batch import MicroBatch, RemoteOutOfMemory, out_of_memory, release
from descend.train.module_state import BufferSnapshot
from descend.train.nonfinite_report import diagnose_batch
from descend.train.objective import Ratio
from descend.train.strategies.base import Strategy, divide, divisor_of, start_backward, summed
from descend.train.strategies.buckets import GradientReducer
from descend.train.strategies.buffers import BufferSynchronizer
from descend.train.transforms.base import Gradients

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from torch import nn

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.objective import Totals
    from descend.train.run import Run

__all__ = ["DataParallel", "all_gather_names"]

_FLAGS = 2  # numbers that every step brings along: out of memory, buffers changed


class DataParallel(Strategy):
    """One rank among several.

    Attributes:
        reducer: Sums the gradients over ranks.
    """

    reduces_gradients: bool = True
    divides_early: bool = True  # whether gradients are divided by a power of two before they are summed
    overlaps: bool = True  # whether gradients are sent during the last backward pass
    pads_evaluation: bool = False

    def setup(self, run: Run) -> None:
        """See `Strategy.setup`; nothing is sent, since the ranks have not been compared yet."""
        super().setup(run)
        self._communicator = run.communicator
        self._signal: str | None = None
        self._buffers_changed = False
        self._pads = run.task.needs_lockstep
        self.can_repeat_step = not self._pads  # no rank can leave a step that others wait in
        if (before := vars(self).get("reducer")) is not None:
            before.close()
        whole = {name: p for name, p in self.parameters.items() if not is_sharded(p)}
        self.reducer = GradientReducer(whole, run.communicator, summed=self.reduces_gradients, say=run.say)
        self._buffers = BufferSynchronizer(run.task.module, run.task.running_statistics, run.communicator)

    # ---- mini-batches

    def micro_batches(self, batch: Batch, training: bool = True) -> Iterator[MicroBatch]:
        """See `Strategy.micro_batches`."""
        own = list(super().micro_batches(batch, training))
        padding = self._padding(batch, own) if (self._pads if training else self.pads_evaluation) else ()
        self._watches_last = self.overlaps and not padding
        yield from own
        self._run_padding(padding, backward=training)

    def _padding(self, batch: Batch, own: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return padding_micro_batches(batch, own, self._run.state.step, self._communicator)

    def _run_padding(self, padding: Sequence[MicroBatch], backward: bool) -> None:
        """Forward and backward passes whose loss has weight 0."""
        run = self._run
        for micro_batch in padding:
            effects = no_side_effects(run.task.module, run.task.needs_lockstep)
            with effects, run.activations.paused():
                numerator = run.task.losses(micro_batch).objective.numerator
                if backward and numerator.requires_grad:
                    with self.communicating_backward():
                        torch.autograd.backward(numerator, torch.zeros_like(numerator))

    # ---- gradients

    @contextlib.contextmanager
    def accumulating(self, batch: Batch) -> Generator[None]:
        """See `Strategy.accumulating`; where memory runs out and the step can be repeated, all ranks repeat it.

        Most losses count samples, whose number all ranks know beforehand. Gradients are divided by the largest power of
        two within it on their way, which changes no bit of their sum; where that is the number itself, one division is
        saved.
        """
        self._buffers.keep()
        self._divided_by = float(1 << batch.size.bit_length() - 1) if self.divides_early else 1.0
        self.reducer.begin(self._divided_by)
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                self._report_out_of_memory(batch, error)
            raise

    def _report_out_of_memory(self, batch: Batch, error: BaseException) -> None:
        if self._run.micro_batch_size.adaptive:
            release(error, self._run.communicator.device)
            self._all_reduce(batch, torch.zeros(2, dtype=torch.float64), short=error)
        elif not self.can_repeat_step:
            error.add_note(
                "the ranks wait for each other within a step, so it cannot be made again with smaller micro-batches: "
                "set micro_batch_size"
            )

    def backward(self, objective: Ratio, micro_batch: MicroBatch) -> Ratio:
        """See `Strategy.backward`; gradients of the last one are sent as soon as they are complete."""
        if self._watches_last and micro_batch.index == micro_batch.of - 1:
            self.reducer.watch()
        numerator, denominator = objective
        with self.communicating_backward():
            start_backward(self._run.precision, numerator, 1.0)
        return Ratio(numerator.detach(), denominator)

    def communicating_backward(self) -> contextlib.AbstractContextManager[Any]:
        """Around a backward pass, for strategies whose backward passes communicate."""
        return contextlib.nullcontext()

    def reduce(self, batch: Batch, ratios: Sequence[Ratio], totals: Totals) -> Gradients:
        """See `Strategy.reduce`."""
        run, own = self._run, summed(ratios)
        numerator, denominator = self._all_reduce(batch, own)
        run.precision.unscale(run.optimizer)
        denominator = divisor_of(denominator)
        divisor = self.divisor(divisor_of(own[1]), denominator)
        divide(self.local_parameters(), divisor / self._divided_by)
        return Gradients(
            run, batch, Ratio(numerator.to(run.communicator.device), denominator), totals, denominator, denominator
        )

    def divisor(self, own: torch.Tensor | float, joint: torch.Tensor | float) -> torch.Tensor | float:
        """What the gradients are divided by: this rank's denominator, or that of all ranks."""
        return joint

    def _all_reduce(self, batch: Batch, sums: torch.Tensor, short: BaseException | None = None) -> torch.Tensor:
        """Sum the gradients, and numerator and denominator, over ranks, which synchronize while gradients are sent.

        Args:
            batch: This rank's share.
            sums: (2,) float64, numerator and denominator of this rank.
            short: That memory has run out here.

        Returns:
            (2,) float64 on the CPU.

        Raises:
            RemoteOutOfMemory: it has on another rank.
            DataError: the ranks do not have the same mini-batch.
        """
        self.reducer.send()
        flags = torch.tensor([short is not None, self._buffers.others_changed()], dtype=torch.float64)
        brought = torch.cat([sums.cpu(), flags, self.reducer.counts()])
        last = ", the last" if batch.last else ""
        place = f"epoch {batch.epoch + 1}, mini-batch {batch.step + 1} of {batch.size} samples{last}"
        at = f"{place}, learning rates {_rates(self._run.optimizer)}"
        found = self._synchronize(at, brought)
        self.reducer.wait()
        if short is not None:
            raise short
        if found[2] > 0:
            raise RemoteOutOfMemory("another rank has no memory left")
        self._buffers_changed = bool(found[3] > 0)
        self.reducer.scatter(found[2 + _FLAGS :])
        return found[:2]

    def diagnose(self, batch: Batch) -> list[str]:
        """See `Strategy.diagnose`: on which rank the samples were."""
        own = any(not bool(torch.isfinite(_values(gradient)).all()) for gradient in self.reducer.local.values())
        lines = self.by_rank(diagnose_batch(batch) if own else None)
        return lines or ["the gradients of all ranks are finite, and their sum is not"]

    def by_rank(self, line: str | None) -> list[str]:
        """The lines of all ranks that have one."""
        of_all = self._communicator.all_gather_object(line)
        return [f"rank {rank}: {line}" for rank, line in enumerate(of_all) if line]

    # ---- the update

    def optimizer_step(self, batch: Batch) -> None:
        """See `Strategy.optimizer_step`."""
        super().optimizer_step(batch)
        self._buffers.settle(batch, self._buffers_changed)

    # ---- agreement

    def synchronize(self, at: str) -> None:
        """See `Strategy.synchronize`.

        Raises:
            DataError: the ranks are at different places.
        """
        self._synchronize(at)

    def _synchronize(self, at: str, values: torch.Tensor | None = None) -> torch.Tensor:
        """Wait for all ranks to come to the same place; what they bring, added up."""
        asks = self._run.stop.requested() is not None
        room = 2 + _FLAGS + self.reducer.room
        found = self._communicator.synchronize(at, asks, values, room)
        if found.stop_requested and self._signal is None:
            asked = self._communicator.all_gather_object(self._run.stop.requested())
            self._signal = next(name for name in asked if name)
        return found.sums

    def stop_requested(self) -> str | None:
        """See `Strategy.stop_requested`."""
        return self._signal


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rates of groups, which ranks compare in every step; one on a GPU would have to be waited for."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return list({float(rate): None for rate in rates if rate is not None and getattr(rate, "is_cpu", True)})


def all_gather_names(names: Sequence[str], communicator: Communicator) -> list[str]:
    """Names that any rank has, on all ranks, each once. Where no rank has any, that is one sum of one number."""
    some = torch.tensor([float(len(names))], dtype=torch.float64, device=communicator.agreements)
    if not communicator.all_reduce(some).item():
        return []
    return list({name: None for some in communicator.all_gather_object(list(names)) for name in some})


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


# ---- lockstep: keeps ranks together where forward passes contain collectives, as FSDP and synchronized batch norm
# do
#
# A rank with fewer micro-batches than another, or none, runs padding: a sample that does not count. Its backward pass
# begins with 0, statistics leave it out, and buffers are restored.


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
