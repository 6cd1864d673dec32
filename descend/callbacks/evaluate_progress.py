"""Evaluates within an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say, with_unit
from descend.callbacks.name_fields import at_least, require, require_samples
from descend.graph.fields import described_openly
from descend.train import Callback, Mode
from descend.train.callback import Beginning

if TYPE_CHECKING:
    from descend.train import EvaluationView, RunView, StepView

__all__ = ["EvaluateProgress"]


@described_openly
class EvaluateProgress(Callback):
    """Evaluates the model every `batch_interval` steps: on tournament samples if there are some, else on validation
    samples, else on test samples.

    Runs:  after_step; after_evaluation, to learn the units.
    Reads: the module, by an evaluation like any other: callbacks that watch evaluations see it, and it is a row of the
        history. Changes nothing that training depends on.
    Costs: a pass over those samples each time.

    Raises:
        ConfigurationError: no metric or an interval below 1; at the start, nothing to evaluate on.
    """

    message: ClassVar[str] = "Callback.CallbackEvaluateProgress"
    reads_weights = False
    looks_at: ClassVar[tuple[str, ...]] = (Mode.TOURNAMENT, Mode.VALIDATION, Mode.TEST)

    batch_interval: int = 0
    metric: str = ""

    def __post_init__(self) -> None:
        require(self, "metric")
        at_least(self, 1, "batch_interval")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`."""
        return Beginning(f"batch_interval={self.batch_interval}", "updates", self.batch_interval)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        require_samples(self, run.steps_per_epoch)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        mode = _mode(step.run)
        if mode is None or step.step % self.batch_interval:
            return
        value = step.run.control.evaluate(mode)[self.metric]
        head = f"{step.run.name} (instance 0) step {step.step} {mode} {self.metric}"
        say(f"{head} : {with_unit(value, self.units.get(self.metric, ''))}")

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self.units = evaluation.units


def _mode(run: RunView) -> Mode | None:
    return next((Mode(mode) for mode in EvaluateProgress.looks_at if mode in run.steps_per_epoch), None)
