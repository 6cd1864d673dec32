"""The moments of a run, and what a callback sees at each.

before_run
for each epoch:
    before_epoch
    for each mini-batch:
        before_step
        for each micro-batch: forward, backward        gradients of numerators add up
        after_backward       gradients are there, weights are still the old ones
        optimizer.step()
        after_step           weights are new, the step is counted
    before_evaluation … after_evaluation               where the run has validation samples
    after_epoch
after_training
before_evaluation … after_evaluation                   once more, on the test samples
after_run                    also when the run ends in an error
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from descend.data import Batch
    from descend.train.progress import Mode

__all__ = ["EpochView", "EvaluationView", "Event", "RunView", "StepView"]


class Event(StrEnum):
    """Every hook that a callback may define, in the order of a run."""

    BEFORE_RUN = "before_run"
    BEFORE_EPOCH = "before_epoch"
    BEFORE_STEP = "before_step"
    AFTER_BACKWARD = "after_backward"
    AFTER_STEP = "after_step"
    BEFORE_EVALUATION = "before_evaluation"
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
        save: Writes a checkpoint of this moment and returns its folder; None where the run has no directory.
        reason: Why the run ended; None while it runs.
    """

    name: str
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    steps_per_epoch: Mapping[Mode, int | None]
    batch_sizes: Mapping[Mode, tuple[int | None, int | None]]
    epochs: int | None = None
    save: Callable[[], Path | None] = lambda: None
    reason: str | None = None


@dataclass(frozen=True)
class StepView:
    """One training step, read only.

    Attributes:
        step: Number of this update, from 1.
        epoch: Whole passes finished before it.
        batch: The mini-batch: fields, sample ids, size.
        module: The module in training.
        optimizer: What updates it.
        objective: The objective on this mini-batch, a detached 0-d tensor on the module's device; None before the
            forward pass.
    """

    step: int
    epoch: int
    batch: Batch
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    objective: torch.Tensor | None = None

    @property
    def loss(self) -> float:
        """The objective as a number. Waits for the device."""
        return float("nan") if self.objective is None else float(self.objective)

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradient of each weight that has one, by name."""
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class EpochView:
    """One pass over the training samples.

    Attributes:
        epoch: Number of the pass, from 0.
        step: Updates applied so far.
        values: Objective and metrics over the pass, by name; empty before it.
        units: Unit of each metric that has one.
        samples: Samples seen in the pass, and how many there are; None where that is not known yet.
        seconds: Length of the pass.
        step_seconds: Length of each step of it.
    """

    epoch: int
    step: int
    run: RunView
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    samples: tuple[int, int | None] = (0, 0)
    seconds: float = 0.0
    step_seconds: tuple[float, ...] = ()


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
