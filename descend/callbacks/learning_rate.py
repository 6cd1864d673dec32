"""Learning rate schedules.

All weights that a callback names share one rate, that of the first of them, as LBANN has it; callbacks on the same
weights build on one another. E is the number of passes that are complete, t the number of updates before this one.

    StepLearningRate            rate · amt, where step divides E
    SetLearningRate             val, where E = step
    DropFixedLearningRate       rate · amt, at each listed E
    LinearGrowthLearningRate    start + (target − start)(E − delay) / num_epochs, for delay ≤ E ≤ delay + num_epochs
    AdaptiveLearningRate        rate · amt, where the objective has not been better for too long
    PolyLearningRate            (start − end)(1 − min(t, max) / max)^power + end
    CosineDecayLearningRate     linear warm-up, then half a cosine, in t
    OptimizerwiseAdaptiveLearningRate    rate · scale ‖w‖ / ‖g‖, for each parameter
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, ClassVar

from descend.arguments.leniency import Deviation, refused
from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least, words
from descend.errors import ConfigurationError, Unsupported, warn
from descend.graph.fields import described_openly
from descend.launch.environment import current_trainer
from descend.machine import as_double
from descend.train import Callback, Mode
from descend.train.callback import Beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from descend.train import EpochView, RunView, StepView

__all__ = [
    "AdaptiveLearningRate",
    "CosineDecayLearningRate",
    "CustomLearningRate",
    "DropFixedLearningRate",
    "LinearGrowthLearningRate",
    "OptimizerwiseAdaptiveLearningRate",
    "PolyLearningRate",
    "SetLearningRate",
    "StepLearningRate",
    "rehearse",
]


class _LearningRate(Callback):
    """Base of learning rate schedules. `start` is the learning rate before the run, or before a resumed run's start."""

    remembers: ClassVar[tuple[str, ...]] = ("start",)
    weights: str
    start = 0.0

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        rates = {name: run.control.rates()[name] for name in run.control.select(words(self.weights))}
        if not rates:  # nothing is trained, so no rate will be asked for
            return
        self.begin(next(iter(rates.values())), run.steps_per_epoch[Mode.TRAIN])
        if len(set(rates.values())) > 1:
            shown = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
            say(f"{type(self).__name__}: these weights will share the learning rate of the first of them: {shown}")

    def begin(self, start: float, steps_per_epoch: int | None) -> None:
        """Store the learning rate before the run and the number of steps of an epoch, where known."""
        self.start = start

    def rate(self, run: RunView) -> float:
        """The current learning rate."""
        names = run.control.select(words(self.weights))
        return run.control.rates()[next(iter(names))] if names else 0.0

    def change(self, run: RunView, rate: float, epoch: int) -> None:
        """Set the learning rate and print it."""
        if rate != self.rate(run):
            say(f"Model {current_trainer()[0]}: changing global learning rate to {rate:g} at epoch {epoch}")
            run.control.set_rate(rate, words(self.weights))


class _AtEpochs(_LearningRate):
    """A learning rate that changes between epochs."""

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete:
            self.change(epoch.run, self.scheduled(epoch.finished, self.rate(epoch.run)), epoch.finished)

    def scheduled(self, epoch: int, rate: float) -> float:
        """The learning rate after `epoch` epochs, of which the last one had `rate`."""
        raise NotImplementedError


class _AtSteps(_LearningRate):
    """A learning rate that is a function of the step; it is printed once an epoch."""

    remembers: ClassVar[tuple[str, ...]] = ("start", "said")
    said = 0.0
    _set = None  # by this callback in this process; no field, and so without a type
    _has_warned = False

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._set, self._has_warned = None, False

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if self._set is not None and not self._has_warned:
            self._warn_of_others(self._set, self.rate(step.run))
        self._set = self.scheduled(step.step - 1)
        step.run.control.set_rate(self._set, words(self.weights))

    def _warn_of_others(self, own: float, found: float) -> None:
        """Warn, once, if the rate is not the one that this callback has set."""
        if not math.isclose(own, found, rel_tol=1e-6):
            self._has_warned = True
            warn(
                f"{type(self).__name__} sets the learning rate before each update, so another callback that had set "
                f"it to {found:g} had no effect: leave one of them out"
            )

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        rate = self.rate(epoch.run)
        if epoch.complete and rate != self.said:
            self.said = rate
            at = f"epoch {epoch.finished}"
            say(f"Model {current_trainer()[0]}: changing global learning rate to {rate:g} at {at}")

    def scheduled(self, step: int) -> float:
        """The learning rate of the update after `step` updates."""
        raise NotImplementedError


@described_openly
class StepLearningRate(_AtEpochs):
    """Multiplies the rate by `amt` every `step` epochs.

    Runs:  after_epoch.
    Reads: the rate in force. Changes the rate of `weights`, or of all where none is named.
    Costs: nothing.

    Raises:
        ConfigurationError: `step` is below 1, or `amt` negative.
    """

    message: ClassVar[str] = "Callback.CallbackStepLearningRate"
    reads_weights = False

    weights: str = ""
    step: int = 0
    amt: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "step")
        at_least(self, 0, "amt")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`: a rate that changes after the last epoch is the rate of no update."""
        return Beginning(f"step={self.step}", "epochs", self.step + 1)

    def scheduled(self, epoch: int, rate: float) -> float:
        """See `_AtEpochs.scheduled`."""
        return rate * self.amt if epoch % self.step == 0 else rate


@described_openly
class SetLearningRate(_AtEpochs):
    """Sets the rate to `val` after `step` epochs.

    Runs:  after_epoch.
    Reads: nothing. Changes the rate of `weights`, or of all where none is named.
    Costs: nothing.

    Raises:
        ConfigurationError: `step` is below 1, or `val` negative.
    """

    message: ClassVar[str] = "Callback.CallbackSetLearningRate"
    reads_weights = False

    weights: str = ""
    step: int = 0
    val: float = 0.0

    def __post_init__(self) -> None:
        never = self.step == 0 and not refused(Deviation.RATE_AT_EPOCH_ZERO, "SetLearningRate.step is 0")
        at_least(self, 0 if never else 1, "step")
        at_least(self, 0, "val")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`, and `StepLearningRate`."""
        return Beginning(f"step={self.step}", "epochs", self.step + 1)

    def scheduled(self, epoch: int, rate: float) -> float:
        """See `_AtEpochs.scheduled`."""
        return self.val if epoch == self.step else rate


@described_openly
class DropFixedLearningRate(_AtEpochs):
    """Multiplies the rate by `amt` after each number of epochs in `drop_epoch`.

    Runs:  after_epoch.
    Reads: the rate in force. Changes the rate of `weights`, or of all where none is named.
    Costs: nothing.

    Raises:
        ConfigurationError: `amt` is negative, or an epoch below 1.
    """

    message: ClassVar[str] = "Callback.CallbackDropFixedLearningRate"
    reads_weights = False

    weights: str = ""
    drop_epoch: tuple[int, ...] = ()
    amt: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "amt")
        if any(epoch < 1 for epoch in self.drop_epoch):
            problem = f"DropFixedLearningRate.drop_epoch is {list(self.drop_epoch)}"
            if min(self.drop_epoch) < 0 or refused(Deviation.RATE_AT_EPOCH_ZERO, problem):
                raise ConfigurationError(
                    f"{problem}; epochs are counted when they are over, so each must be at least 1"
                )

    @property
    def beginning(self) -> Beginning | None:
        """See `Callback.beginning`, and `StepLearningRate`."""
        if not self.drop_epoch:
            return None
        return Beginning(f"drop_epoch={list(self.drop_epoch)}", "epochs", min(self.drop_epoch) + 1)

    def scheduled(self, epoch: int, rate: float) -> float:
        """See `_AtEpochs.scheduled`."""
        return rate * self.amt if epoch in self.drop_epoch else rate


@described_openly
class LinearGrowthLearningRate(_AtEpochs):
    """Moves the rate in equal steps from where it started to `target`, from epoch `delay` on and over `num_epochs`.

    Runs:  after_epoch.
    Reads: the rate before the run. Changes the rate of `weights`, or of all where none is named.
    Costs: nothing.

    Raises:
        ConfigurationError: `num_epochs` is below 1, or another number negative.
    """

    message: ClassVar[str] = "Callback.CallbackLinearGrowthLearningRate"
    reads_weights = False

    weights: str = ""
    target: float = 0.0
    num_epochs: int = 0
    delay: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "num_epochs")
        at_least(self, 0, "target", "delay")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`, and `StepLearningRate`."""
        return Beginning(f"delay={self.delay}", "epochs", max(self.delay + 1, 1) + 1)

    def scheduled(self, epoch: int, rate: float) -> float:
        """See `_AtEpochs.scheduled`."""
        done = epoch - self.delay
        if not 0 <= done <= self.num_epochs:
            return rate
        return self.start + (self.target - self.start) * done / self.num_epochs


@described_openly
class AdaptiveLearningRate(_LearningRate):
    """Multiplies the rate by `amt` when the training objective has not been below its best for more than `patience`
    epochs; the bar is then the objective of that epoch.

    Runs:  after_epoch.
    Reads: the training objective. Changes the rate of `weights`, or of all where none is named.
    Costs: nothing.

    Raises:
        ConfigurationError: a number is negative.
    """

    message: ClassVar[str] = "Callback.CallbackAdaptiveLearningRate"
    reads_weights = False
    remembers: ClassVar[tuple[str, ...]] = ("start", "best", "waited")
    best = math.inf
    waited = 0

    weights: str = ""
    patience: int = 0
    amt: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "patience", "amt")

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`, and `StepLearningRate`: the first epoch is better than none."""
        return Beginning(f"patience={self.patience}", "epochs", self.patience + 3)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        super().after_setup(run)
        self.best, self.waited = math.inf, 0

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        objective = epoch.values["objective"]
        if not epoch.complete:
            return
        if objective < self.best:
            self.best, self.waited = objective, 0
        elif self.waited < self.patience:
            self.waited += 1
        else:
            self.best, self.waited = objective, 0
            self.change(epoch.run, self.rate(epoch.run) * self.amt, epoch.finished)


@described_openly
class PolyLearningRate(_AtSteps):
    """Lets the rate fall as a power of the steps that are left: (start − end_lr)(1 − min(t, max) / max)^power + end_lr.

    Runs:  after_backward, after_epoch.
    Reads: the rate before the run. Changes the rate of `weights`, or of all where none is named.
    Costs: a few microseconds a step.

    Args:
        weights: Weights that share the rate.
        power: 1 is a straight line.
        num_epochs: Epochs until end_lr, where max_iter is 0.
        max_iter: Steps until end_lr.
        end_lr: The last rate.

    Raises:
        ConfigurationError: neither num_epochs nor max_iter is set, or a number is negative; at the start, num_epochs
            and data of unknown length.
    """

    message: ClassVar[str] = "Callback.CallbackPolyLearningRate"
    reads_weights = False
    steps = 0

    weights: str = ""
    power: float = 0.0
    num_epochs: int = 0
    max_iter: int = 0
    end_lr: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "power", "num_epochs", "max_iter", "end_lr")
        if not self.num_epochs and not self.max_iter:
            raise ConfigurationError("PolyLearningRate needs num_epochs= or max_iter=")

    def begin(self, start: float, steps_per_epoch: int | None) -> None:
        """See `_LearningRate.begin`."""
        super().begin(start, steps_per_epoch)
        if not self.max_iter and steps_per_epoch is None:
            raise ConfigurationError(
                "PolyLearningRate: the number of steps in an epoch of these data is unknown; set max_iter="
            )
        self.steps = self.max_iter or self.num_epochs * (steps_per_epoch or 0)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`. As in LBANN, the rate is that of the steps done, which the next update has."""
        if epoch.complete:
            self.change(epoch.run, self.scheduled(epoch.step), epoch.finished)
            self._set = self.rate(epoch.run)

    def scheduled(self, step: int) -> float:
        """See `_AtSteps.scheduled`."""
        left = 1 - min(step, self.steps) / self.steps
        return (self.start - self.end_lr) * left**self.power + self.end_lr


@described_openly
class CosineDecayLearningRate(_AtSteps):
    """Lets the rate grow linearly from `initial_warmup_learning_rate` to `lr_max` over `warmup_steps`, then fall along
    half a cosine to `lr_min` over `decay_steps`, and stay there.

    Runs:  after_backward, after_epoch.
    Reads: nothing. Changes the rate of `weights`, or of all where none is named.
    Costs: a few microseconds a step.

    Raises:
        ConfigurationError: `decay_steps` is below 1, a number is negative, or lr_min is above lr_max.
    """

    message: ClassVar[str] = "Callback.CallbackCosineDecayLearningRate"
    reads_weights = False

    weights: str = ""
    lr_max: float = 0.0
    lr_min: float = 0.0
    decay_steps: int = 0
    initial_warmup_learning_rate: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "decay_steps")
        at_least(self, 0, "lr_min", "initial_warmup_learning_rate", "warmup_steps")
        at_least(self, self.lr_min, "lr_max")

    @property
    def rate_of_step(self) -> Callable[[int], float]:
        """See `Callback.rate_of_step`."""
        return self.scheduled

    def scheduled(self, step: int) -> float:
        """See `_AtSteps.scheduled`."""
        if step < self.warmup_steps:
            first = self.initial_warmup_learning_rate
            return first + (self.lr_max - first) * step / self.warmup_steps
        decayed = min(step - self.warmup_steps, self.decay_steps) / self.decay_steps
        return self.lr_min + (self.lr_max - self.lr_min) * 0.5 * (1 + math.cos(math.pi * decayed))


@described_openly
class OptimizerwiseAdaptiveLearningRate(_LearningRate):
    """Before each update multiplies the rate of each parameter by scale ‖w‖ / ‖g‖, as LARS does; by 1 where one of
    the norms is 0.

    Runs:  after_backward.
    Reads: weights and gradients. Changes the multiplier of the rate, so that it works together with other callbacks.
    Costs: two norms for each parameter and one wait for the device a step.

    Raises:
        ConfigurationError: `scale` is negative; at the start, an optimizer without a multiplier (not one of descend's).
    """

    message: ClassVar[str] = "Callback.CallbackOptimizerwiseAdaptiveLearningRate"

    weights: str = ""
    scale: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "scale")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        names = run.control.select(words(self.weights))
        run.control.set_each("lr_mult", dict.fromkeys(names, 1.0))

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        import torch

        chosen = step.run.control.select(words(self.weights))
        pairs = {name: torch.stack([p.norm(), p.grad.norm()]) for name, p in chosen.items() if p.grad is not None}
        if pairs:
            norms = as_double(torch.stack(list(pairs.values()))).tolist()
            multipliers = {
                name: self.scale * w / g if w > 0 and g > 0 else 1.0 for name, (w, g) in zip(pairs, norms, strict=True)
            }
            step.run.control.set_each("lr_mult", multipliers)


@described_openly
class CustomLearningRate(Callback):
    """Part of the format without any setting that says what it does: it is refused.

    Runs:  never.
    Reads: nothing. Changes nothing.
    Costs: nothing.

    Raises:
        Unsupported: always; the message says what to use.
    """

    message: ClassVar[str] = "Callback.CallbackCustomLearningRate"

    def __post_init__(self) -> None:
        raise Unsupported(
            "CustomLearningRate has no settings, so no text can say what it does: write a Callback of your own that "
            "calls run.control.set_rate(), or use one of the other callbacks for the rate"
        )


def rehearse(
    callbacks: Iterable[Callback], rates: Mapping[str, float], steps_per_epoch: int, points: Sequence[int]
) -> dict[str, list[float]]:
    """The rates of a run that is not made: those of some updates, as the callbacks will set them.

    What follows a measured value (`AdaptiveLearningRate`, `OptimizerwiseAdaptiveLearningRate`) stays out.

    Args:
        callbacks: All of the run's, in order.
        rates: The learning rate of each trainable parameter before the run.
        steps_per_epoch: Updates in a pass.
        points: Updates applied before the ones asked for, rising.

    Returns:
        For each parameter its learning rate at each point.
    """
    played = [
        (copy.copy(callback), [name for name in words(callback.weights) or rates if name in rates])
        for callback in callbacks
        if isinstance(callback, _AtSteps | _AtEpochs)
    ]
    now, curves = dict(rates), {name: list[float]() for name in rates}
    for callback, names in played:
        callback.begin(now[names[0]], steps_per_epoch)
    passes = 0
    for point in points:
        while (passes + 1) * steps_per_epoch <= point:
            passes += 1
            _play_steps(played, now, passes * steps_per_epoch - 1)
            for callback, names in played:
                first = now[names[0]]
                if isinstance(callback, _AtEpochs) and (rate := callback.scheduled(passes, first)) != first:
                    now.update(dict.fromkeys(names, rate))
        _play_steps(played, now, point)
        for name, rate in now.items():
            curves[name].append(rate)
    return curves


def _play_steps(played: Sequence[tuple[_LearningRate, Sequence[str]]], now: dict[str, float], step: int) -> None:
    """Let the callbacks that act at each step set the rates of the update that follows `step` others."""
    for callback, names in played:
        if isinstance(callback, _AtSteps):
            now.update(dict.fromkeys(names, callback.scheduled(step)))
