"""Stops training that has ceased to help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least, require_samples
from descend.graph.fields import described_openly
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from descend.train import EvaluationView, RunView

__all__ = ["EarlyStopping"]


@described_openly
class EarlyStopping(Callback):
    """Stops when the validation objective has not been below its best for more than `patience` evaluations.

    Runs:  after_evaluation, of validation samples.
    Reads: the objective; a NaN counts as no better. Ends training.
    Costs: nothing.

    Raises:
        ConfigurationError: `patience` is negative; at the start, a run without validation samples.
    """

    message: ClassVar[str] = "Callback.CallbackEarlyStopping"
    remembers: ClassVar[tuple[str, ...]] = ("best", "waited")
    looks_at: ClassVar[tuple[str, ...]] = (Mode.VALIDATION,)
    best = math.inf
    waited = 0

    patience: int = 0

    def __post_init__(self) -> None:
        at_least(self, 0, "patience")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.best, self.waited = math.inf, 0
        require_samples(self, run.steps_per_epoch)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is not Mode.VALIDATION:
            return
        objective = evaluation.values["objective"]
        if objective < self.best:
            self.best, self.waited = objective, 0
        elif self.waited < self.patience:
            self.waited += 1
        else:
            say(f"Model 0 terminating training due to early stopping: {objective:g} score and {self.best:g} last score")
            evaluation.run.control.stop(
                f"validation objective {objective:.6g} was not below {self.best:.6g} for "
                f"{self.waited + 1} evaluations, the patience being {self.patience}"
            )
