"""Ends a run whose metric is out of bounds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.name_fields import modes_of, require
from descend.errors import ConfigurationError, NumericalError, warn
from descend.graph.fields import described_openly
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from descend.train import EpochView, EvaluationView

__all__ = ["CheckMetric"]


@described_openly
class CheckMetric(Callback):
    """Checks after each epoch that the mean of `metric` is in [lower_bound, upper_bound].

    Runs:  after_epoch, after_evaluation.
    Reads: the values of the pass; as it is printed, so a metric of the unit % in per cent. Changes nothing.
    Costs: nothing.

    Args:
        metric: Its name.
        lower_bound: Smallest good value.
        upper_bound: Largest good value.
        error_on_failure: End the run with an error (exit code 4) instead of a warning.
        execution_modes: Passes to look at; all where none is named.

    Raises:
        ConfigurationError: no metric, an unknown mode, or bounds that no value satisfies.
        NumericalError: from a hook, when the value is outside or NaN and `error_on_failure` is set.
    """

    message: ClassVar[str] = "Callback.CallbackCheckMetric"
    reads_weights = False

    metric: str = ""
    lower_bound: float = 0.0
    upper_bound: float = 0.0
    error_on_failure: bool = False
    execution_modes: str = ""

    def __post_init__(self) -> None:
        require(self, "metric")
        modes_of(self.execution_modes)
        if not self.lower_bound <= self.upper_bound:
            raise ConfigurationError(
                f"CheckMetric: no value is in [{self.lower_bound:g}, {self.upper_bound:g}]; swap the bounds"
            )

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._check(epoch, Mode.TRAIN)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._check(evaluation, evaluation.mode)

    def _check(self, view: EpochView | EvaluationView, mode: Mode) -> None:
        if mode not in modes_of(self.execution_modes):
            return
        twin = re.compile(rf"{re.escape(self.metric)} \(\d+\)")  # what metrics of one name are called in the plan
        problems = [
            f"CheckMetric: {mode} {name} is {value:.9g} at step {view.step}, which is not in "
            f"[{self.lower_bound:g}, {self.upper_bound:g}]"
            for name, measured in view.values.items()
            if name == self.metric or twin.fullmatch(name)
            if not self.lower_bound
            <= (value := measured * (100 if view.units.get(name) == "%" else 1))
            <= self.upper_bound
        ]
        if problems and self.error_on_failure:
            raise NumericalError(problems)
        for problem in problems:
            warn(problem)
