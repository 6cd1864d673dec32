"""Stops training once a metric has ceased to improve, and can restore the weights of the best epoch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_choice, check_integer, check_number, require
from descend.callbacks.console import say
from descend.callbacks.name_fields import require_samples
from descend.errors import ConfigurationError
from descend.graph.fields import described_openly
from descend.train import Callback, Mode
from descend.train.callback import OF_AN_AVERAGE, Beginning, Monitored
from descend.train.metric_direction import better, direction_of, unknown_direction

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.train import EpochView, EvaluationView, RunView
    from descend.train.metric_direction import Direction

__all__ = ["EarlyStopping"]

_MODES = (Mode.TRAIN.value, Mode.VALIDATION.value)  # what is measured after every epoch


@described_openly
class EarlyStopping(Callback):
    """Stops when `monitor` has not improved on its best value for more than `patience` epochs.

    The first epoch without an improvement ends a run of patience 0, the third one a run of patience 2. Only complete
    epochs count, so a run that is stopped and continued decides as one that was not stopped.

    Runs:  after_evaluation and after_epoch, before_run and after_training.
    Reads: the monitored value; NaN is not an improvement. Ends training; with `restore_best`, changes the weights.
    Costs: nothing; with `restore_best`, one copy of all weights and buffers in main memory and in each checkpoint.

    Args:
        monitor: "train/NAME" or "validation/NAME", NAME being "objective" or a metric of the run.
        mode: "min" if lower is better, "max" if higher is; None takes it from the metric's name, as `Reached` does.
        patience: How many epochs without an improvement are accepted, >= 0.
        min_delta: Only a change of more than this counts as an improvement, >= 0, in units of the metric.
        restore_best: At the end of training, put back weights and buffers of the best epoch. The test samples are
            evaluated with these. A run that is continued after that continues from its last weights.

    Raises:
        ConfigurationError: a setting is wrong, or it is not known which direction is better; at the start, a run
            without validation samples where validation is monitored.

    Source: LBANN's CallbackEarlyStopping, which has `patience` alone.
    """

    message: ClassVar[str] = "Callback.CallbackEarlyStopping"
    reads_weights = False
    remembers: ClassVar[tuple[str, ...]] = ("best", "waited", "best_weights", "last_weights", "before")

    monitor: str = "validation/objective"
    mode: str | None = None
    patience: int = 0
    min_delta: float = 0.0
    restore_best: bool = False

    def __post_init__(self) -> None:
        self.reads_weights = self.keeps_weights = self.restore_best
        measured, _, name = self.monitor.partition("/")
        if measured not in _MODES or not name or "/" in name:
            raise ConfigurationError(
                "EarlyStopping: monitor must be 'train/NAME' or 'validation/NAME', such as 'validation/objective', got "
                f"{self.monitor!r}{OF_AN_AVERAGE if '/' in name else ''}"
            )
        require(
            check_choice("mode", self.mode, ("min", "max"), also=(None,)),
            check_integer("patience", self.patience, minimum=0),
            check_number("min_delta", self.min_delta, at_least=0),
            where="EarlyStopping",
        )
        chosen = self.mode or direction_of(self.monitor)
        if chosen is None:
            say_which = "pass mode='min' or mode='max'"
            raise ConfigurationError(
                unknown_direction(f"EarlyStopping(monitor={self.monitor!r})", self.monitor, say_which)
            )
        direction: Direction = "min" if chosen == "min" else "max"
        self._watched = Mode(measured), name, direction
        vars(self)["looks_at"] = (Mode.VALIDATION,) if measured == "validation" else ()
        self._forget()

    @property
    def monitored(self) -> Monitored:
        """See `Callback.monitored`."""
        return Monitored(self.monitor, self._watched[2], self.restore_best)

    @property
    def beginning(self) -> Beginning | None:
        """See `Callback.beginning`: the first epoch is an improvement, so many epochs later is the first decision."""
        if self.restore_best:
            return None
        return Beginning(f"patience={self.patience}", "epochs", self.patience + 2)

    def _forget(self) -> None:
        self.best = math.inf if self._watched[2] == "min" else -math.inf
        self.waited = 0  # epochs since the best one
        self.before: list[float] = []  # the newest epoch with a value, and what `best` and `waited` were before it
        self._weights_before: tuple[dict[str, torch.Tensor] | None] | None = None  # and `best_weights`, if it is known
        self.best_weights: dict[str, torch.Tensor] | None = None
        self.last_weights: dict[str, torch.Tensor] | None = None  # of a run that has ended with the best ones
        self._epoch: int | None = None  # the one under way

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        default = EarlyStopping()
        given = [
            name
            for name in ("monitor", "mode", "min_delta", "restore_best")
            if getattr(self, name) != getattr(default, name)
        ]
        if given:
            raise ConfigurationError(
                f"EarlyStopping: LBANN's format has no place for {', '.join(given)}; leave it out to save a text"
            )
        return {"patience": self.patience}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> EarlyStopping:
        """The callback from the fields of its text form."""
        return cls(**fields)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self._forget()
        require_samples(self, run.steps_per_epoch)

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        if self.last_weights is not None:
            _load(run.module, self.last_weights)
            self.last_weights = None

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        self._epoch = epoch.epoch

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        complete = self._epoch is not None and evaluation.epoch > self._epoch
        if complete and evaluation.mode is self._watched[0]:
            self._judge(evaluation.values, evaluation.epoch, evaluation.run)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete and self._watched[0] is Mode.TRAIN:
            self._judge(epoch.values, epoch.finished, epoch.run)

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        if self.best_weights is not None:
            self.last_weights = _copy(run.module)
            _load(run.module, self.best_weights)

    def _judge(self, values: Mapping[str, float], epoch: int, run: RunView) -> None:
        """Take the value of an epoch: it is the best so far, or one more without an improvement.

        An epoch counts once, also where another callback evaluates after its last step: then the last value counts.
        """
        mode, name, direction = self._watched
        if name not in values:
            raise ConfigurationError(
                f"EarlyStopping: this run does not measure '{self.monitor}'; its {mode.value} metrics are "
                f"{', '.join(values)}"
            )
        value = values[name]
        if self.before and self.before[0] == epoch:
            self.best, self.waited = self.before[1], int(self.before[2])
            if self._weights_before is not None:
                (self.best_weights,) = self._weights_before
        self.before, self._weights_before = [epoch, self.best, self.waited], (self.best_weights,)
        if better(value, self.best, direction, self.min_delta):
            self.best, self.waited = value, 0
            self.best_weights = _copy(run.module) if self.restore_best else None
            return
        self.waited += 1
        if self.waited <= self.patience:
            return
        say(f"Model 0 terminating training due to early stopping: {value:g} score and {self.best:g} last score")
        side = "below" if direction == "min" else "above"
        margin = f" by more than {self.min_delta:g}" if self.min_delta else ""
        run.control.stop(
            f"{mode.value} {name} {value:.6g} was not {side} {self.best:.6g}{margin} for "
            f"{self.waited} evaluations, the patience being {self.patience}"
        )


def _copy(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers in main memory; every rank of a sharded module has to ask."""
    from descend.runtime.dtensor import full_tensor
    from descend.train.module_state import tensors_of

    return {name: full_tensor(tensor).to("cpu", copy=True) for name, tensor in tensors_of(module).items()}


def _load(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    from descend.runtime.dtensor import copy_into
    from descend.train.module_state import tensors_of

    own = tensors_of(module)
    for name, tensor in values.items():
        copy_into(own[name], tensor)
