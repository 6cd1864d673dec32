"""The moments of a run, and what a callback sees at each.

after_setup                  everything has its first values; a checkpoint is restored after it
before_run
for each epoch:
    before_epoch
    for each mini-batch:
        before_step
        for each micro-batch: forward, backward        gradients of numerators add up
            after_part
        after_backward       gradients are there, weights are still the old ones
        optimizer.step()
        after_step           weights are new, the step is counted
    before_evaluation                                  where the run has validation samples
    for each mini-batch: before_evaluation_step, forward, after_evaluation_step
    after_evaluation
    after_epoch
after_training
before_evaluation … after_evaluation                   the same on the test samples
after_run                    also when the run ends in an error
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from descend.data import Batch
    from descend.train.activations import ActivationRecorder
    from descend.train.callback_api import RunControl
    from descend.train.objective import Ratio

__all__ = ["EpochView", "EvaluationView", "Event", "PartView", "RunView", "StepView"]


class Event(StrEnum):
    """Every hook that a callback may define, in the order of a run."""

    AFTER_SETUP = "after_setup"
    BEFORE_RUN = "before_run"
    BEFORE_EPOCH = "before_epoch"
    BEFORE_STEP = "before_step"
    AFTER_PART = "after_part"
    AFTER_BACKWARD = "after_backward"
    AFTER_STEP = "after_step"
    BEFORE_EVALUATION = "before_evaluation"
    BEFORE_EVALUATION_STEP = "before_evaluation_step"
    AFTER_EVALUATION_STEP = "after_evaluation_step"
    AFTER_EVALUATION = "after_evaluation"
    AFTER_EPOCH = "after_epoch"
    AFTER_TRAINING = "after_training"
    AFTER_RUN = "after_run"


@dataclass(frozen=True)
class RunView:
    """The run as a whole.

    Attributes:
        name: The model's name.
        module: The module in training.
        optimizer: What updates it.
        steps_per_epoch: Mini-batches a pass, by mode; None before the first pass over an iterable of unknown length.
        batch_sizes: Size of a mini-batch, and of the last one, by mode; None likewise.
        epochs: Passes planned, where known.
        save: Writes a checkpoint of this moment and returns its folder; None where the run has no directory. It takes a
            `descend.runtime.Wish` for more.
        control: What a callback may change, and ask for beyond this record.
        step: Updates applied so far; not 0 before a run that continues a checkpoint.
        passes: Whole passes over the training samples so far.
        reason: Why the run ended; None while it runs.
    """

    name: str
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    steps_per_epoch: Mapping[Mode, int | None]
    batch_sizes: Mapping[Mode, tuple[int | None, int | None]]
    epochs: int | None = None
    save: Callable[..., Path | None] = lambda *wish, **more: None
    control: RunControl = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]  # the loop gives it
    step: int = 0
    passes: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class StepView:
    """One training step, or one mini-batch of an evaluation, read only.

    Attributes:
        step: Number of this update, from 1; in an evaluation, number of the mini-batch since the run began, from 1.
        epoch: Whole passes finished before it.
        batch: This rank's share of the mini-batch: fields, sample ids; and the size of the whole.
        module: The module in training.
        optimizer: What updates it.
        sums: Numerator and denominator of the objective on this mini-batch; None before the forward pass and in an
            evaluation.
        run: The run that it belongs to.
        watch: Ask it for outputs of layers before the forward pass, and read them after it.
        mode: Training, or what is evaluated.
    """

    step: int
    epoch: int
    batch: Batch
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    sums: Ratio | None = None
    run: RunView = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]  # the loop gives it
    watch: ActivationRecorder = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]  # the loop gives it
    mode: Mode = Mode.TRAIN

    @cached_property
    def objective(self) -> torch.Tensor | None:
        """The objective on this mini-batch, a detached 0-d tensor on the module's device; None where `sums` is. It is
        worked out for who asks."""
        return None if self.sums is None else self.sums.numerator / self.sums.denominator

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """Numbers of the samples of the mini-batch, those of all ranks. All ranks have to ask."""
        return self.run.control.ids(self.batch)

    @property
    def loss(self) -> float:
        """The objective as a number. Waits for the device."""
        return float("nan") if self.objective is None else float(self.objective)

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradient of each weight that has one, by name."""
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class PartView:
    """One micro-batch of a training step, after its backward pass.

    Attributes:
        step: Number of the update under way, from 1.
        index: Number of the micro-batch, from 0.
        parts: How many the step has.
        samples: Samples of this one.
        module: Its gradients are sums over the samples of the micro-batches so far, or the mean where `parts` is 1.
        run: The run that it belongs to.
    """

    step: int
    index: int
    parts: int
    samples: int
    module: torch.nn.Module
    run: RunView


@dataclass(frozen=True)
class EpochView:
    """One pass over the training samples.

    Attributes:
        epoch: Number of the pass, from 0.
        step: Updates applied so far.
        values: Objective and metrics over the pass, by name; empty before it.
        units: Unit of each metric that has one.
        samples: Samples seen in the pass, and how many there are; None where that is not known yet.
        position: Mini-batches of the pass that are done; before a pass not 0 where it is continued within.
        seconds: Length of the pass.
        step_seconds: Length of each step of it.
        complete: Whether the pass went to its end; False before it, and where a limit on steps or time cut it short.
    """

    epoch: int
    step: int
    run: RunView
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    samples: tuple[int, int | None] = (0, 0)
    seconds: float = 0.0
    step_seconds: tuple[float, ...] = ()
    complete: bool = False
    position: int = 0

    @property
    def finished(self) -> int:
        """Whole passes so far, this one included once it is complete: the epoch counter of LBANN's callbacks."""
        return self.epoch + self.complete


@dataclass(frozen=True)
class EvaluationView:
    """One pass over validation, test or tournament samples; fields as in `EpochView`, beside the mode."""

    mode: Mode
    epoch: int
    step: int
    run: RunView
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    samples: tuple[int, int | None] = (0, 0)
    seconds: float = 0.0
    step_seconds: tuple[float, ...] = ()
