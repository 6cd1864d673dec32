"""One line an epoch: the values of training and validation, the learning rate, how long it took and how long is left.

    epoch 3/10, step 18: objective 0.4123, accuracy 0.9012; validation objective 0.4461; lr 0.001; 1.4 s, 9.8 s left

`fit` prints these, except with `verbose=False` or with `Print` among its callbacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least
from descend.train import Callback, Mode
from descend.train.param_groups import group_learning_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.train import EpochView, EvaluationView, RunView

__all__ = ["ProgressLines", "shown_duration", "shown_rates", "shown_values"]


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
