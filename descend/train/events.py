"""The events of a run in their order, and the record that a callback gets at each.

after_setup                  everything is initialized; a checkpoint is restored after it
before_run
for each epoch:
    before_epoch
    for each mini-batch:
        before_step
        for each micro-batch: forward, backward        gradients of numerators are accumulated
            after_part
        after_backward       gradients are complete, weights are not updated yet
        optimizer.step()
        after_step           weights are updated, the step is counted
    before_evaluation                                  if the run has validation samples
    for each mini-batch: before_evaluation_step, forward, after_evaluation_step
    after_evaluation
    after_epoch
after_training
before_evaluation … after_evaluation                   the same on the test samples
after_run                    also if the run ends in an error
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from descend.data import Batch
    from descend.train.activations import ActivationRecorder
    from descend.train.callback_api import RunControl
    from descend.train.objective import Ratio
    from descend.train.run import Run

__all__ = ["EpochView", "EvaluationView", "Event", "PartView", "RunView", "RunViews", "StepView", "announced"]


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
        steps_per_epoch: Mini-batches per epoch, by mode; None before the first epoch of an iterable of unknown length.
        batch_sizes: Size of a mini-batch and of the last one of an epoch, by mode; None likewise.
        epochs: Epochs planned; None if that is not known.
        save: Writes a checkpoint now and returns its folder; None if the run has no directory. It takes a
            `descend.runtime.SaveRequest`.
        unsubscribe: Called with a callback and an event, it lets that hook be called no more in this run.
        control: What a callback may change, and further queries.
        step: Updates applied so far; not 0 at the start of a run that continues a checkpoint.
        passes: Complete epochs so far.
        reason: Why the run ended; None while it runs.
        settings: What the run was set to, as in `run.json`: plain values by name.
        history: All rows so far, those that callbacks have recorded included; it grows while the run continues.
    """

    name: str
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    steps_per_epoch: Mapping[Mode, int | None]
    batch_sizes: Mapping[Mode, tuple[int | None, int | None]]
    epochs: int | None = None
    save: Callable[..., Path | None] = lambda *wish, **more: None
    unsubscribe: Callable[[Any, Event], None] = lambda callback, event: None
    control: RunControl = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]  # the loop gives it
    step: int = 0
    passes: int = 0
    reason: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    history: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True)
class StepView:
    """One training step, or one mini-batch of an evaluation; read-only.

    Attributes:
        step: Number of this update, from 1; in an evaluation, number of the mini-batch since the run began, from 1.
        epoch: Complete epochs before it.
        batch: This rank's share of the mini-batch, fields and sample ids, and the size of the whole mini-batch.
        module: The module in training.
        optimizer: What updates it.
        sums: Numerator and denominator of the objective on this mini-batch; None before the forward pass and in an
            evaluation.
        run: The run that it belongs to.
        watch: Records outputs of layers: request them before the forward pass, read them after it.
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
        """The objective on this mini-batch, a detached 0-d tensor on the module's device; None if `sums` is None.
        Computed on first use."""
        return None if self.sums is None else self.sums.numerator / self.sums.denominator

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """Sample numbers of the mini-batch over all ranks. A collective: every rank must call it."""
        return self.run.control.collectives.ids(self.batch)

    @property
    def loss(self) -> float:
        """The objective as a float. Synchronizes with the device."""
        return float("nan") if self.objective is None else float(self.objective)

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradient of each parameter that has one, by name."""
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
    """One epoch: a pass over the training samples.

    Attributes:
        epoch: Number of the epoch, from 0.
        step: Updates applied so far.
        values: Objective and metrics over the epoch, by name; empty before it.
        units: Unit of each metric that has one.
        samples: Samples seen in the epoch, and how many there are in all; None if that is not known yet.
        position: Mini-batches of the epoch that are done; not 0 before an epoch that is resumed part-way.
        seconds: Duration of the epoch.
        step_seconds: Duration of each of its steps.
        complete: Whether the epoch was completed; False before it, and if a limit on steps or time ended it early.
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
        """Complete epochs so far, this one included once it is complete: the epoch counter of LBANN's callbacks."""
        return self.epoch + self.complete


@dataclass(frozen=True)
class EvaluationView:
    """One evaluation of the validation, test or tournament samples.

    Attributes:
        mode: Which samples.
        epoch: Complete epochs so far, the one it follows included once that is complete.

    All other fields are as in `EpochView`.
    """

    mode: Mode
    epoch: int
    step: int
    run: RunView
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    units: Mapping[str, str] = field(default_factory=dict[str, str])
    samples: tuple[int, int | None] = (0, 0)
    seconds: float = 0.0
    step_seconds: tuple[float, ...] = ()


# ---- what callbacks see of a run, and how they learn of its beginning and its end


class RunViews:
    """Makes the views of a run that its callbacks are called with.

    Args:
        run: The run.

    Attributes:
        of_epoch: The run as callbacks of steps see it, the same throughout an epoch.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.of_epoch = self.of_run()

    def begin_epoch(self) -> None:
        """From now on `of_epoch` is the run as it is at this moment."""
        self.of_epoch = self.of_run()

    def of_run(self, reason: str | None = None) -> RunView:
        """The run at this moment.

        Args:
            reason: Why it ended, once it has.
        """
        run = self._run
        return RunView(
            name=run.name,
            module=run.task.module,
            optimizer=run.optimizer,
            steps_per_epoch={mode: batches.steps_per_epoch for mode, batches in run.data.items()},
            batch_sizes={mode: (batches.first_size, batches.last_size) for mode, batches in run.data.items()},
            epochs=run.epochs,
            save=lambda *request, **more: run.store.save(run, *request, **more),
            unsubscribe=run.callbacks.unsubscribe,
            control=run.control,
            step=run.state.step,
            passes=run.state.epochs_done,
            reason=reason,
            settings=run.config.settings,
            history=run.state.history,
        )

    def of_step(self, batch: Batch, objective: Ratio | None = None) -> StepView:
        """The training step under way."""
        run = self._run
        return StepView(
            run.state.step + 1,
            run.state.training.epoch,
            batch,
            run.task.module,
            run.optimizer,
            objective,
            self.of_epoch,
            run.activations,
        )


@contextmanager
def announced(run: Run, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Generator[None]:
    """Within this block the run takes place: before_run is called first and after_run last, also after an error.

    Every callback is called at the end, and the first error is the one that is raised.

    Args:
        run: The run.
        within: Entered around the calls of callbacks.
    """
    try:
        with within():
            run.callbacks.fire(Event.BEFORE_RUN, run.views.of_run())
        yield
    except BaseException:
        _report(run, _announce_end(run, within))
        raise
    if failures := _announce_end(run, within):
        _report(run, failures[1:])
        raise failures[0]


def _announce_end(run: Run, within: Callable[[], AbstractContextManager[object]]) -> list[BaseException]:
    with within():
        return run.callbacks.fire_all(Event.AFTER_RUN, run.views.of_run(run.state.end))


def _report(run: Run, failures: Sequence[BaseException]) -> None:
    for failure in failures:
        run.say(f"after_run, called because of another error, raised {type(failure).__name__}: {failure}")
