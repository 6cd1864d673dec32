"""Times epochs and mini-batches, in LBANN's log format."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.train import EpochView, EvaluationView

__all__ = ["Timer"]


@dataclass(frozen=True)
class Timer(Callback):
    """Prints the time of each pass and the mean, median, maximum, minimum and standard deviation of its mini-batches.

    Runs:  after_epoch, after_evaluation.
    Reads: times the loop has taken anyway. Changes nothing.
    Costs: a sort of the step times an epoch.

    Args:
        skip_steps: Leave so many first mini-batches of each pass out of the statistics.

    Raises:
        ConfigurationError: a negative number of them.

    Source: LBANN's CallbackTimer; its median is wrong for an even number of mini-batches, this one is not.
    """

    message: ClassVar[str] = "Callback.CallbackTimer"
    reads_weights = False

    skip_steps: int = 0

    def __post_init__(self) -> None:
        at_least(self, 0, "skip_steps")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._print(f"{epoch.run.name} (instance 0) training epoch {epoch.epoch}", epoch.seconds, epoch.step_seconds)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        word = "validation" if evaluation.mode is Mode.VALIDATION else evaluation.mode.value
        head = f"{evaluation.run.name} (instance 0) {word}"
        self._print(head, evaluation.seconds, evaluation.step_seconds)

    def _print(self, head: str, seconds: float, step_seconds: Sequence[float]) -> None:
        say(f"{head} run time : {seconds:g}s")
        say(f"{head} mini-batch time statistics : {_statistics(step_seconds[self.skip_steps :])}")


def _statistics(times: Sequence[float]) -> str:
    if not times:
        return "N/A mean, N/A median, N/A max, N/A min, N/A stdev"
    spread = f"{statistics.stdev(times):.4g}s" if len(times) > 1 else "N/A"
    return (
        f"{statistics.fmean(times):.4g}s mean, {statistics.median(times):.4g}s median, "
        f"{max(times):.4g}s max, {min(times):.4g}s min, {spread} stdev"
    )
