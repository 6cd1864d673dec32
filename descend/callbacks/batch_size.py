"""Mini-batch size schedules. A size above the trainer's mini-batch size is clipped to it, with a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least
from descend.errors import ConfigurationError, warn
from descend.graph.fields import described_openly
from descend.train import Callback

if TYPE_CHECKING:
    from descend.train import EpochView, RunView, StepView

__all__ = ["MinibatchRamp", "MinibatchSchedule", "MinibatchScheduleStep", "StepMinibatch"]


class _BatchSize(Callback):
    """Base of mini-batch size schedules: `size` is current; the learning rate grows by `growth` for `ramp` epochs."""

    remembers: ClassVar[tuple[str, ...]] = ("size", "growth", "ramp")
    starting_mbsize: int
    size = 0
    most = 0
    growth = 0.0
    ramp = 0

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.most, self.growth, self.ramp = run.control.batch_size, 0.0, 0
        self.set_size(run, self.starting_mbsize)

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`; a run that continues a checkpoint has its own size again."""
        run.control.batch_size = self.size

    def set_size(self, run: RunView, size: int) -> None:
        """Set the mini-batch size from the next epoch on."""
        if size > self.most:
            warn(
                f"{type(self).__name__}: a mini-batch of {size:,} is more than the trainer's {self.most:,} and is "
                "clipped to that"
            )
        self.size = min(size, self.most)
        run.control.batch_size = self.size

    def set_rate(self, epoch: EpochView, rate: float, epochs: int) -> None:
        """Bring the learning rate (that of the first parameter, for all) to `rate` over `epochs` epochs."""
        now = _rate(epoch.run)
        self.growth, self.ramp = (rate - now) / max(epochs, 1), epochs
        if epochs == 0:
            _change(epoch, rate)

    def goal(self, run: RunView) -> float:
        """The current learning rate, or the target of the ramp."""
        return _rate(run) + self.ramp * self.growth

    def grow(self, epoch: EpochView) -> None:
        """Take one step of the learning rate's ramp."""
        if self.ramp:
            self.ramp -= 1
            _change(epoch, _rate(epoch.run) + self.growth)


def _rate(run: RunView) -> float:
    return next(iter(run.control.rates().values()))


def _change(epoch: EpochView, rate: float) -> None:
    epoch.run.control.set_rate(rate)
    say(f"Model 0: changing global learning rate to {rate:g} at epoch {epoch.finished}")


@described_openly
class StepMinibatch(_BatchSize):
    """Doubles mini-batch size and learning rate every `step` epochs; the latter over `ramp_time` epochs.

    Where the trainer's size limits the doubling, the learning rate grows by the same factor as the mini-batch size.

    Runs:  after_setup, before_run, after_epoch.
    Reads: the learning rate. Changes the mini-batch size and the learning rate of all parameters.
    Costs: nothing.

    Raises:
        ConfigurationError: `starting_mbsize` or `step` is below 1, or `ramp_time` negative.
    """

    message: ClassVar[str] = "Callback.CallbackStepMinibatch"
    reads_weights = False

    starting_mbsize: int = 0
    step: int = 0
    ramp_time: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "starting_mbsize", "step")
        at_least(self, 0, "ramp_time")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if not epoch.complete:
            return
        if epoch.finished % self.step == 0 and self.size < self.most:
            before = self.size
            self.set_size(epoch.run, 2 * before)
            say(f"Model 0: changing mini-batch size to {self.size} at epoch {epoch.finished}")
            self.set_rate(epoch, self.goal(epoch.run) * self.size / before, self.ramp_time)
        else:
            self.grow(epoch)


@described_openly
class MinibatchScheduleStep:
    """From `epoch` on: mini-batches of `mbsize`; the learning rate `lr` (0: unchanged) over `ramp_time` epochs."""

    message: ClassVar[str] = "Callback.MinibatchScheduleStep"

    epoch: int = 0
    mbsize: int = 0
    lr: float = 0.0
    ramp_time: int = 0


@described_openly
class MinibatchSchedule(_BatchSize):
    """Changes mini-batch size and learning rate at listed epochs.

    Runs:  after_setup, before_run, after_epoch.
    Reads: the learning rate. Changes the mini-batch size and the learning rate of all parameters.
    Costs: nothing.

    Raises:
        ConfigurationError: a size or an epoch is below 1, a rate or a ramp below 0, or two steps are of one epoch.
    """

    message: ClassVar[str] = "Callback.CallbackMinibatchSchedule"
    reads_weights = False

    starting_mbsize: int = 0
    step: tuple[MinibatchScheduleStep, ...] = ()

    def __post_init__(self) -> None:
        at_least(self, 1, "starting_mbsize")
        for step in self.step:
            at_least(step, 1, "epoch", "mbsize")
            at_least(step, 0, "lr", "ramp_time")
        if len({step.epoch for step in self.step}) < len(self.step):
            raise ConfigurationError("MinibatchSchedule: two steps have the same epoch; remove one of them")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if not epoch.complete:
            return
        now = next((step for step in self.step if step.epoch == epoch.finished), None)
        if now is not None:
            self.set_size(epoch.run, now.mbsize)
            say(f"Model 0: changing mini-batch size to {self.size} at epoch {epoch.finished}")
        if now is not None and now.lr:
            self.set_rate(epoch, now.lr, now.ramp_time)
        else:
            self.grow(epoch)


@described_openly
class MinibatchRamp(Callback):
    """Grows the mini-batch size linearly over the first `num_samples` training samples; not in LBANN.

        size = start + ⌊(target − start) · samples seen / num_samples⌋, the growth rounded down to a multiple of
        `multiple_of`; from num_samples on, target

    It changes between any two steps, and each epoch still uses every sample once. It is a function of the samples
    seen, so a resumed run, or one whose epochs have another length, has the same sizes. Learning rates are unchanged.

    Runs:  after_setup, before_run, after_step.
    Reads: the samples seen. Changes the mini-batch size.
    Costs: negligible; where it changes the size, prefetched batches are read again.

    Args:
        starting_mbsize: start.
        target: Size at the end, at most the trainer's; 0 is the trainer's.
        num_samples: Length of the ramp.
        multiple_of: See above; 0 counts as 1.

    Raises:
        ConfigurationError: a number is out of range; at the start, a target above the trainer's size.
    """

    message: ClassVar[str] = "Callback.CallbackMinibatchRamp"
    reads_weights = False

    starting_mbsize: int = 0
    target: int = 0
    num_samples: int = 0
    multiple_of: int = 1
    _target = 0

    def __post_init__(self) -> None:
        self.multiple_of = self.multiple_of or 1
        at_least(self, 1, "starting_mbsize", "num_samples", "multiple_of")
        at_least(self, 0, "target")

    def size(self, samples: int) -> int:
        """The mini-batch size after `samples` samples."""
        if samples >= self.num_samples:
            return self._target
        grown = (self._target - self.starting_mbsize) * samples // self.num_samples
        return self.starting_mbsize + grown - grown % self.multiple_of

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        most = run.control.batch_size
        self._target = self.target or most
        if not self.starting_mbsize <= self._target <= most:
            raise ConfigurationError(
                f"MinibatchRamp: from {self.starting_mbsize:,} to {self._target:,} with mini-batches of {most:,} at "
                "most; expected a start up to the target, and a target up to the trainer's size"
            )

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        run.control.batch_size = self.size(run.control.samples)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        control = step.run.control
        if (size := self.size(control.samples)) != control.batch_size:
            control.batch_size = size
