"""A progress bar: steps of the epoch, speed, time left, objective, learning rate, and the newest validation."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, ClassVar, cast

from descend.callbacks.console import claim, is_muted, release
from descend.callbacks.name_fields import at_least
from descend.callbacks.progress_lines import shown_rates, shown_values
from descend.terminal import TolerantStream, is_tty
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["ProgressBar", "peak_bytes"]


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
