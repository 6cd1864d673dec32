"""A strategy: where parameters live and how ranks communicate. The step calls it and asks nothing about it.

    a step             batches            which mini-batches this rank computes, in order
                       gradients          around the computation of one, for other parameters than the newest
                       micro_batches      how each of them goes through the module
                       accumulating       around the forward and backward passes of one mini-batch
                         backward           of each micro-batch
                       reduce             gradients and sums over ranks, and the one division
                       optimizer_step     the update
    all ranks alike    synchronize, stop_requested, union, gradient_norms
    evaluation, end    evaluating, end_training
    a checkpoint       own_state, load_own_state, restored

`Strategy` is the strategy of a single device, and the base of the others: each file beside this one overrides what is
different, most often `reduce` or `optimizer_step` and the state. `StrategyDescription` is what a user gives to
`fit(strategy=...)`. docs/how-to/custom_strategy.md writes one.

The word is Fabric's: https://lightning.ai/docs/fabric/stable/api/generated/lightning.fabric.strategies.Strategy.html
"""

from __future__ import annotations

import contextlib
import copy
import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch

from descend.data.loading.batch_iterable import BatchIterable
from descend.errors import warn
from descend.machine import as_double
from descend.torch_private import run_backward
from descend.train.micro_batch import MicroBatch, out_of_memory, split_into_micro_batches
from descend.train.nonfinite_report import diagnose_batch
from descend.train.objective import Ratio
from descend.train.progress import Mode
from descend.train.transforms.base import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.objective import Totals
    from descend.train.precision import Precision
    from descend.train.run import Run

__all__ = [
    "Strategy",
    "StrategyDescription",
    "divide",
    "divisor_of",
    "joint_norm",
    "start_backward",
    "summed",
]


class Strategy:
    """A single device: nothing is sent.

    Attributes:
        parameters: Of the module, by name.
        is_sharded: Whether this rank holds only a part of the gradients, so that norms need a collective.
        resets_with_optimizer: Whether its state starts over where the optimizer's does.
        can_repeat_step: Whether a step may be repeated with smaller micro-batches when memory runs out.
    """

    is_sharded: bool = False
    resets_with_optimizer: ClassVar[bool] = False
    can_repeat_step: bool = True

    def setup(self, run: Run) -> None:
        """Called when the run has all of its parts, and again between two steps if the module has other parameters."""
        self._run = run
        self.parameters: dict[str, torch.nn.Parameter] = dict(run.task.module.named_parameters())
        self._is_divided = False

    @property
    def world(self) -> Communicator:
        """All ranks that take part in the run in any role; their settings are compared before it begins."""
        return self._run.communicator

    @property
    def serve(self) -> Callable[[], dict[str, Any]] | None:
        """On a rank that computes for the one that trains: does so until the run ends, and returns what came of it."""
        return None

    # ---- mini-batches

    def batches(self) -> Generator[Batch]:
        """The remaining mini-batches of the current epoch."""
        now, feed = self._run.state.training, self._run.data[Mode.TRAIN]
        batches = feed.epoch(now.epoch, now.position, now.taken)
        return compared(batches, feed, self._run.communicator) if isinstance(feed, BatchIterable) else batches

    def micro_batches(self, batch: Batch, training: bool = True) -> Iterator[MicroBatch]:
        """The micro-batches of a mini-batch; padding, where ranks need it, runs after the last one."""
        run, state = self._run, self._run.state
        unit, kept = (run.task.micro_batch_unit, state.samples_kept) if training else (1, 0)
        size = run.micro_batch_size.samples
        return iter(split_into_micro_batches(batch, run.communicator, size, unit, state.step, kept))

    # ---- gradients

    def gradients(self, batch: Batch, compute: Callable[[], Gradients]) -> Gradients:
        """The gradient of a mini-batch. A strategy that computes at other parameters overrides this.

        Args:
            batch: This rank's share.
            compute: Computes it with the parameters as they are.
        """
        return compute()

    def accumulating(self, batch: Batch) -> AbstractContextManager[Any]:
        """Context manager around the forward and backward passes of a mini-batch."""
        self._is_divided = False
        return _NOTHING

    def backward(self, objective: Ratio, micro_batch: MicroBatch) -> Ratio:
        """Add the gradient of one micro-batch.

        The loss of a mini-batch that is not split is divided before its backward pass, which saves a pass over the
        gradients. Several micro-batches are summed and divided in `reduce`, so that how a mini-batch is split
        changes nothing.
        """
        numerator, denominator = objective
        if micro_batch.of == 1:
            denominator, self._is_divided = divisor_of(denominator), True
        start_backward(self._run.precision, numerator, denominator if self._is_divided else 1.0)
        return Ratio(numerator.detach(), denominator)

    def reduce(self, batch: Batch, ratios: Sequence[Ratio], totals: Totals) -> Gradients:
        """Sum gradients and objective over ranks, and divide.

        Args:
            batch: This rank's share.
            ratios: The objective of each micro-batch.
            totals: Sums of objective and metrics of this rank.
        """
        run = self._run
        run.precision.unscale(run.optimizer)
        if self._is_divided:
            return Gradients(run, batch, ratios[0], totals, ratios[0].denominator)
        numerator, denominator = summed(ratios)
        count = divisor_of(denominator)
        divide(self.parameters, count)
        return Gradients(run, batch, Ratio(numerator.to(run.communicator.device), count), totals, count, count)

    def local_parameters(self) -> Mapping[str, torch.Tensor]:
        """The parameters by name, with their gradients; of sharded ones, this rank's shards."""
        return self.parameters

    def gradient_norms(self, parameters: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The Euclidean norm of each gradient, all shards of it, and of all gradients together.

        Args:
            parameters: Those of `local_parameters` that have a gradient.
        """
        norms = [torch.linalg.vector_norm(p.grad) for p in parameters.values() if p.grad is not None]
        return norms, joint_norm(norms)

    def union(self, names: Sequence[str]) -> list[str]:
        """The union over ranks of names of parameters, without communication where all ranks have the same."""
        return list(names)

    def diagnose(self, batch: Batch) -> list[str]:
        """Findings about the samples of a step whose gradient is not finite, one line each."""
        return [diagnose_batch(batch)]

    # ---- the update, evaluation, the end

    def optimizer_step(self, batch: Batch) -> None:
        """One update of all parameters from their gradients."""
        try:
            self._run.precision.optimizer_step(self._run.optimizer)
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                error.add_note(_out_of_memory_in_update(self.parameters, self._run.communicator.world_size))
            raise

    def evaluating(self) -> AbstractContextManager[Any]:
        """Context manager around an evaluation, for strategies that evaluate other parameters than they train."""
        return _NOTHING

    def end_training(self) -> None:
        """Called after the final checkpoint, before the parameters are given to the user."""

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Context manager around the whole run of a rank that trains, from before it begins to its end or error."""
        yield

    # ---- agreement

    def synchronize(self, at: str) -> None:
        """A barrier, at which ranks also learn whether one of them was asked to stop."""

    def stop_requested(self) -> str | None:
        """The name of a signal to stop, as all ranks know it since the last synchronization; or None."""
        return self._run.stop.requested()

    # ---- state

    @final
    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps. All ranks call it together."""
        state = self.own_state()
        return {"strategy": type(self).__name__, "state": state} if state else {}

    @final
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; the state of another strategy is left alone."""
        if state_dict.get("strategy") == type(self).__name__:
            self.load_own_state(state_dict["state"])

    def restored(self) -> None:
        """Called once all parts, parameters and buffers are those of a checkpoint."""

    def own_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this strategy."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Load what `own_state` returned."""


class StrategyDescription:
    """What `fit(strategy=...)` takes: says which strategy a run has, and what it is incompatible with.

    Attributes:
        takes_phases: Whether it trains several optimizers whose updates alternate (`descend.Phase`), too.
    """

    takes_phases: ClassVar[bool] = False

    _written: str = ""

    @property
    def written(self) -> str:
        """The argument as the user wrote it, for messages; `strategy=...` unless `given_by` says otherwise."""
        return self._written or f"strategy={self!r}"

    def given_by(self, argument: str) -> Self:
        """The same description, which was asked for by another argument, such as "gradient_compression='sign'"."""
        found = copy.copy(self)
        object.__setattr__(found, "_written", argument)  # descriptions are frozen
        return found

    def communicator(self, world: Communicator) -> Communicator:
        """The ranks that share each mini-batch."""
        return world

    def create(self, world: Communicator) -> Strategy | None:
        """The strategy of this rank. None keeps the default one; `prepare` then changes the run, as that of
        `GradientAccumulation` does, which inserts a transform."""
        return None

    def problems(self, run: Run, world: Communicator, trainers: int) -> list[str]:
        """What it is incompatible with in this run, a sentence each; asked before the run begins."""
        return []

    def prepare(self, run: Run, world: Communicator) -> None:
        """Called before a run is carried out, once `problems` has none."""


def summed(ratios: Sequence[Ratio]) -> torch.Tensor:
    """(2,) float64, numerators and denominators added up."""
    numerator = sum((ratio.numerator for ratio in ratios), torch.zeros(()))
    denominator = torch.as_tensor(sum(ratio.denominator for ratio in ratios), dtype=torch.float64)
    numerator = as_double(numerator)
    return torch.stack([numerator, denominator.to(numerator.device)])


def divide(parameters: Mapping[str, torch.Tensor], divisor: torch.Tensor | float) -> None:
    """Divide the gradients, in place."""
    if isinstance(divisor, torch.Tensor) or divisor != 1.0:
        for p in parameters.values():
            if p.grad is not None:
                p.grad.div_(divisor)


def joint_norm(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of tensors with these norms; 0 for none."""
    return torch.linalg.vector_norm(torch.stack(list(norms))) if norms else torch.zeros(())


def _out_of_memory_in_update(parameters: Mapping[str, torch.Tensor], ranks: int) -> str:
    """What to do where memory runs out in an update, when no micro-batch is in memory any more."""
    held = sum(p.numel() * p.element_size() for p in parameters.values())
    share = "shard_optimizer=True, " if ranks > 1 else ""
    return (
        f"memory ran out in the update of {held / 1e6:,.1f} MB of weights, which needs their gradients and the "
        "optimizer's state beside them; smaller micro-batches do not help: use "
        f"{share}torch's fully_shard on more ranks, or an optimizer with less state, such as SGD, Lion or Adafactor"
    )


def divisor_of(denominator: torch.Tensor | float) -> torch.Tensor | float:
    """The denominator, or 1 where nothing was counted: then the numerator is 0 and so is the gradient.

    A float on a CPU, where Python's arithmetic is cheaper; a tensor on a GPU, to avoid a synchronization.
    """
    if not isinstance(denominator, torch.Tensor):
        return denominator or 1.0
    return denominator.item() or 1.0 if denominator.is_cpu else denominator + (denominator == 0)


def start_backward(precision: Precision, numerator: torch.Tensor, divisor: torch.Tensor | float) -> None:
    """Add the gradients of numerator / divisor; nothing where no parameter requires a gradient any more."""
    if numerator.requires_grad:
        if isinstance(divisor, torch.Tensor):
            start = _scalar(1.0, numerator.dtype, numerator.device) / divisor
        else:
            start = _scalar(1 / divisor, numerator.dtype, numerator.device)
        run_backward(numerator, precision.scale(start))  # an autograd node for the division would take 15 µs more


@functools.lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A 0-d tensor, cached: mini-batches of equal size use the same one."""
    return torch.tensor(value, dtype=dtype, device=device)


_NOTHING: AbstractContextManager[Any] = nullcontext()


# ---- compares the first mini-batch of an iterable between ranks, which cannot be read before the run as a sample
# can
#
# A list is compared before the run, with the settings. Of anything else ranks may draw different batches for a good
# reason, as augmentation does, so a difference is a warning.


def compared(batches: Generator[Batch], feed: BatchIterable, world: Communicator) -> Generator[Batch]:
    """The same mini-batches; ranks whose first one differs are warned of.

    Args:
        batches: Those of an epoch.
        feed: Where they come from.
        world: All ranks that train.
    """
    with contextlib.closing(batches):
        for batch in batches:
            if world.world_size > 1 and not (feed.is_compared or feed.is_list):
                feed.is_compared = True
                if len(set(world.all_gather_object(feed.digest))) > 1:
                    warn(
                        "the first mini-batch differs between ranks. Each rank trains on its share of every mini-batch"
                        ", so all of them must yield the same ones: pass an iterable that does not choose samples by "
                        "rank, and seed alike what it draws at random"
                    )
            yield batch
