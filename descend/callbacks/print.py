"""Prints LBANN's log: a banner for each epoch, then objective function and metrics of each mode.

model0 (instance 0) training epoch 0 objective function : 0.5871
model0 (instance 0) validation accuracy : 92.31%
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say, with_unit
from descend.callbacks.name_fields import at_least
from descend.launch.environment import current_trainer
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from descend.train import EpochView, EvaluationView, RunView

__all__ = ["Print"]

_RULE = "-" * 80
_WORDS = {Mode.VALIDATION: "validation", Mode.TEST: "test", Mode.TOURNAMENT: "tournament"}


@dataclass(frozen=True)
class Print(Callback):
    """Prints the epoch banner and the values of each pass.

    Runs:  before_epoch, after_epoch, after_evaluation.
    Reads: the values of the pass. Changes nothing.
    Costs: a few lines an epoch.

    Args:
        interval: Print every so many epochs; 0 counts as 1.
        print_global_stat_only: Accepted for LBANN's files and without effect: each trainer prints its own lines, and
            there are none of the whole.

    Raises:
        ConfigurationError: a negative interval.

    Source: the line format of LBANN's CallbackPrint, which its users' scripts parse. The unit "%" multiplies a value by
    100, as there.
    """

    message: ClassVar[str] = "Callback.CallbackPrint"
    reads_weights = False

    interval: int = 1
    print_global_stat_only: bool = False

    def __post_init__(self) -> None:
        at_least(self, 0, "interval")

    def _due(self, epoch: int) -> bool:
        return epoch % max(self.interval, 1) == 0

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        if self._due(epoch.epoch) and not epoch.position:  # a pass that is continued has its banner already
            say(_banner(epoch.epoch, epoch.run))

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self._due(epoch.epoch):
            _print_values(epoch, f"training epoch {epoch.epoch}")

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        if evaluation.mode is not Mode.VALIDATION or self._due(max(evaluation.epoch - 1, 0)):
            _print_values(evaluation, _WORDS[evaluation.mode])


def _instance(run: RunView) -> str:
    """The model and the number of its trainer."""
    return f"{run.name} (instance {current_trainer()[0]})"


def _print_values(view: EpochView | EvaluationView, what: str) -> None:
    """The lines of a pass. Of several trainers each prints its own, whichever rank speaks for it."""
    alone, head = current_trainer()[1] == 1, f"{_instance(view.run)} {what}"
    speaks = not alone and view.run.control.collectives.is_rank_zero
    for name, value in view.values.items():
        label = "objective function" if name == "objective" else name
        say(f"{head} {label} : {with_unit(value, view.units.get(name, ''))}", even_muted=speaks)


def _banner(epoch: int, run: RunView) -> str:
    modes = [mode for mode in (Mode.TRAIN, Mode.VALIDATION, Mode.TEST) if mode in run.steps_per_epoch]
    steps = "/".join(str(run.steps_per_epoch[mode] or "?") for mode in modes)
    sizes = "/".join(f"{run.batch_sizes[mode][0] or '?':>4}" for mode in modes)
    lasts = "/".join(f"{run.batch_sizes[mode][1] or '?':>4}" for mode in modes)
    names = "/".join({Mode.TRAIN: "tr", Mode.VALIDATION: "v", Mode.TEST: "te"}[mode] for mode in modes)
    return (
        f"{_RULE}\n"
        f"[{epoch}] Epoch : stats formatted [{names}] iterations/epoch = [{steps}]\n"
        f"    global MB = [{sizes}] global last MB = [{lasts}]\n"
        f"{_RULE}"
    )
