"""The progress of a run on a terminal: a progress bar during an epoch, and a line after it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, ClassVar, cast

from descend.callbacks.console import claim, is_muted, release, say
from descend.callbacks.name_fields import at_least
from descend.terminal import TolerantStream, is_tty
from descend.train import Callback, Mode
from descend.train.param_groups import group_learning_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from rich.progress import Progress, TaskID

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["ProgressBar", "ProgressLines", "peak_bytes"]


@dataclass
class ProgressBar(Callback):
    """Draws a bar for each epoch on a terminal; says nothing when the output is not one.

    Runs:  before_epoch, after_step, after_evaluation, after_epoch, after_run.
    Reads: the objective every `interval` steps, and waits for the device then; learning rates; values of evaluations.
        Changes nothing.
    Costs: a redraw ten times a second at most.

    Args:
        interval: Look at the objective every so many steps; 0 counts as 10.
        newline_interval: Accepted for LBANN's files; the bar has a line of its own.
        print_mem_usage: Show the most memory that this process has held.
        moving_average_length: Steps over which the shown objective is averaged; 0 counts as 10.
        bar_width: Width in characters; 0 counts as 30.
        scientific_notation: Show the objective as 1.2e-03.

    Raises:
        ConfigurationError: a negative number.

    Source: LBANN's CallbackProgressBar, drawn with rich.
    """

    message: ClassVar[str] = "Callback.CallbackProgressBar"
    reads_weights = False

    interval: int = 0
    newline_interval: int = 0
    print_mem_usage: bool = False
    moving_average_length: int = 0
    bar_width: int = 0
    scientific_notation: bool = False
    _progress: Progress | None = field(default=None, init=False, repr=False, compare=False)
    _task: TaskID | None = field(default=None, init=False, repr=False, compare=False)
    _validation: str = field(default="", init=False, repr=False, compare=False)
    _recent: list[float] = field(default_factory=list[float], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at_least(self, 0, "interval", "newline_interval", "moving_average_length", "bar_width")

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        if is_muted() or not is_tty(sys.stdout):
            return
        if self._progress is None:
            self._progress = _open(self.bar_width or 30)
            claim(self._progress.console)
        of = "" if epoch.run.epochs is None else f"/{epoch.run.epochs}"
        total = epoch.run.steps_per_epoch[Mode.TRAIN]
        title = f"epoch {epoch.epoch + 1}{of}"
        self._task = self._progress.add_task(title, total=total, completed=epoch.position, note="")

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if self._progress is None or self._task is None:
            return
        self._progress.advance(self._task)
        if step.step % (self.interval or 10) == 0:
            rates = shown_rates(step.optimizer)
            notes = [
                self._note(step.loss),
                *([rates] if rates else []),
                *([self._validation] if self._validation else []),
            ]
            self._progress.update(self._task, note=", ".join(notes))

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is Mode.VALIDATION:
            self._validation = f"validation {shown_values(evaluation.values)}"

    def _note(self, objective: float) -> str:
        self._recent = [*self._recent, objective][-(self.moving_average_length or 10) :]
        mean = sum(self._recent) / len(self._recent)
        memory = f", {peak_bytes() / 2**20:,.0f} MiB" if self.print_mem_usage else ""
        return f"objective {mean:.3e}{memory}" if self.scientific_notation else f"objective {mean:.4f}{memory}"

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        if self._progress is not None:
            self._progress.stop()
            release(self._progress.console)
            self._progress = None


def _open(width: int) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Steps a second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f} steps/s" if speed else "")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        transient=True,
        console=Console(file=cast("IO[str]", TolerantStream(sys.stdout))),
    )
    bar.start()
    return bar


def peak_bytes() -> int:
    """The most memory that this process has held so far; 0 where the system does not say, as on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# ---- one line an epoch: the values of training and validation, the learning rate, how long it took and how long is
# left
#
#     epoch 3/10, step 18: objective 0.4123, accuracy 0.9012; validation objective 0.4461; lr 0.001; 1.4 s, 9.8 s left
#
# `fit` prints these, except with `verbose=False` or with `Print` among its callbacks.


@dataclass
class ProgressLines(Callback):
    """Prints one line an epoch, and one for the evaluation of the test samples.

    Runs:  before_run, before_epoch, after_evaluation, after_epoch.
    Reads: the values of the epoch and of its validation, and the learning rates. Changes nothing.
    Costs: a line an epoch.

    Args:
        every_epochs: Print every so many epochs, and the first and the last one.

    Raises:
        ConfigurationError: `every_epochs` is below 1.
    """

    reads_weights = False

    every_epochs: int = 1
    _began: float = field(default=0.0, init=False, repr=False, compare=False)
    _epochs: int = field(default=0, init=False, repr=False, compare=False)  # since this process began
    _whole: bool = field(default=False, init=False, repr=False, compare=False)  # the epoch began in this process
    _seconds: float = field(default=0.0, init=False, repr=False, compare=False)  # of whole epochs of this process
    _validation: dict[str, float] = field(default_factory=dict[str, float], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at_least(self, 1, "every_epochs")

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._epochs, self._seconds, self._validation = 0, 0.0, {}

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        self._began, self._whole, self._validation = epoch.run.control.collectives.now(), not epoch.position, {}

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is Mode.VALIDATION:
            self._validation = dict(evaluation.values)
        elif evaluation.mode is Mode.TEST:
            say(f"test {shown_values(evaluation.values)}; {shown_duration(evaluation.seconds)}")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        seconds = epoch.run.control.collectives.now() - self._began
        if self._whole and epoch.complete:
            self._epochs, self._seconds = self._epochs + 1, self._seconds + seconds
        planned = epoch.run.epochs
        number = epoch.epoch + 1
        if (number - 1) % self.every_epochs and number != planned and epoch.complete:
            return
        of = "" if planned is None else f"/{planned}"
        part = "" if epoch.complete else " (part of it)"
        parts = [f"epoch {number}{of}{part}, step {epoch.step:,}: {shown_values(epoch.values)}"]
        if self._validation:
            parts.append(f"validation {shown_values(self._validation)}")
        if rates := shown_rates(epoch.run.optimizer):
            parts.append(rates)
        left = "" if planned is None or not self._epochs else self._left(planned - number)
        say("; ".join([*parts, f"{shown_duration(seconds)}{left}"]))

    def _left(self, epochs: int) -> str:
        """The time that is left, by the mean of the epochs so far."""
        return f", {shown_duration(epochs * self._seconds / self._epochs)} left" if epochs > 0 else ""


def shown_values(values: Mapping[str, float]) -> str:
    """Values with their names."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def shown_rates(optimizer: torch.optim.Optimizer) -> str:
    """The learning rate, or the smallest and the largest of several groups; nothing where there is none."""
    rates = sorted(set(group_learning_rates(optimizer).values()))
    return f"lr {' to '.join(f'{rate:.3g}' for rate in dict.fromkeys([rates[0], rates[-1]]))}" if rates else ""


def shown_duration(seconds: float) -> str:
    """A duration in the units that a reader thinks in."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {left:02} s"
