"""Averages of the weights over the steps of a run, which are evaluated, saved and given back in place of the weights.

    EMA    a ← a + (1 − d)(w − a) after every update: the exponential moving average
    SWA    a ← a + (w − a)/n after every epoch from some epoch on: stochastic weight averaging

Training continues from the weights themselves. The averages are in the state of the callback, hence in each checkpoint.

Sources: Polyak and Juditsky 1992, https://doi.org/10.1137/0330046; Izmailov et al. 2018,
https://arxiv.org/abs/1803.05407
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_bool, check_integer, check_number, require
from descend.errors import ConfigurationError, warn
from descend.torch_private import version_counter
from descend.train import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["EMA", "SWA", "evaluated_average"]


@dataclass
class _WeightAverage(Callback):
    """What averages have in common: the average, and its place in the module during evaluations."""

    remembers: ClassVar[tuple[str, ...]] = ("average", "count", "last_weights")
    replaces_weights: ClassVar[bool] = True
    keeps_weights = True

    average_buffers: bool = field(default=True, kw_only=True)
    average: dict[str, torch.Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    last_weights: dict[str, torch.Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    count: int = field(default=0, init=False, repr=False, compare=False)  # weights that are in the average
    _module: Any = field(default=None, init=False, repr=False, compare=False)
    _trained: dict[str, torch.Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    _written: int = field(default=-1, init=False, repr=False, compare=False)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        _refuse_averaging_rules(type(self).__name__, run.optimizer)
        self.average = self.last_weights = self._trained = None
        self.count, self._module = 0, run.module

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        tensors = self._tensors()
        if self.last_weights is not None:  # the run had ended, with the average in the module
            _write(self.last_weights, tensors)
            self.last_weights = None
        if self.average is not None:  # from a checkpoint, in main memory and whole
            saved, self.average = self.average, {name: _copy(tensor) for name, tensor in tensors.items()}
            _write(saved, self.average)
        self._written = self._versions()

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`."""
        if self.average is not None and self.last_weights is None and self._trained is None:
            tensors = self._tensors()
            self._trained = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            _write(self.average, tensors)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._take_back()

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._written = self._versions()

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        self._take_back()
        others_wrote = self._versions() != self._written  # as EarlyStopping with restore_best, which comes before
        if self.average is not None and not others_wrote:
            self.last_weights = self._whole(self._tensors())
            _write(self.average, self._tensors())

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        self._take_back()

    def state(self) -> dict[str, Any]:
        """See `Callback.state`; a checkpoint has the weights of training, and the average here."""
        self._take_back()
        average = None if self.average is None else self._whole(self.average)
        return {**super().state(), "average": average}

    def _add(self, part: float) -> None:
        """Move the average by `part` of the way to the weights; the first weights are the average."""
        import torch

        from descend.runtime.dtensor import local_shard

        tensors = self._tensors()
        self.count += 1
        if self.average is None:
            self.average = {name: _copy(tensor) for name, tensor in tensors.items()}
            return
        with torch.no_grad():
            for name, tensor in tensors.items():
                average, now = local_shard(self.average[name]), local_shard(tensor)
                average.lerp_(now.to(average.dtype), part)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """What is averaged: floating-point weights and, if asked for, buffers, as they are in the module."""
        found = dict(self._module.named_parameters())
        if self.average_buffers:
            found.update(self._module.named_buffers())
        return {name: tensor for name, tensor in found.items() if tensor.is_floating_point() or tensor.is_complex()}

    def _whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies in main memory; every rank of a sharded module has to ask."""
        from descend.runtime.dtensor import full_tensor

        return {name: full_tensor(tensor).to("cpu", copy=True) for name, tensor in tensors.items()}

    def _take_back(self) -> None:
        """Put the weights of training back, to the same bits, after an evaluation."""
        if self._trained is not None:
            _write(self._trained, self._tensors())
            self._trained = None

    def _versions(self) -> int:
        """A number that grows with each write into the parameters."""
        return sum(version_counter(p) for p in self._module.parameters())


@dataclass
class EMA(_WeightAverage):
    """Evaluates, saves and ends with the exponential moving average of the weights.

        a ← a + (1 − d)(w − a) after every `every_steps` updates; the first weights are the first average

    Training continues from the weights. The average is what validation and test samples are evaluated with, what
    `EarlyStopping(restore_best=True)` keeps, what `load_weights` loads, and what is in the module at the end.

    Runs:  after_setup, before_run, after_step, around evaluations, after_epoch, after_training, after_run.
    Reads: the weights. Changes them during evaluations, and at the end of training.
    Costs: a copy of all weights, one more during evaluations, both on their device; an update of it each step.

    Args:
        decay: d, in [0, 1); 0.999 averages over about the last 1,000 updates.
        every_steps: Updates between two weights that are averaged.
        start_step: The first update that counts.
        warmup: Use min(d, (1 + n)/(10 + n)) where n weights are in the average, so that the first ones are soon
            forgotten.
        average_buffers: Whether running statistics of normalization layers and other floating-point buffers are
            averaged too; False evaluates with those of the last step.

    Raises:
        ConfigurationError: a setting is wrong; at the start, where the optimizer's rule averages weights by itself.

    Source: Polyak and Juditsky 1992; the warm-up is that of TensorFlow's ExponentialMovingAverage.
    """

    decay: float = 0.999
    every_steps: int = field(default=1, kw_only=True)
    start_step: int = field(default=0, kw_only=True)
    warmup: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require(
            check_number("decay", self.decay, at_least=0, below=1),
            check_integer("every_steps", self.every_steps, 1),
            check_integer("start_step", self.start_step, 0),
            check_bool("warmup", self.warmup),
            check_bool("average_buffers", self.average_buffers),
            where="EMA",
        )

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step >= self.start_step and step.step % self.every_steps == 0:
            kept = min(self.decay, (1 + self.count) / (10 + self.count)) if self.warmup else self.decay
            self._add(1 - kept)
        self._written = self._versions()


@dataclass
class SWA(_WeightAverage):
    """Evaluates, saves and ends with the mean of the weights after each of the last epochs.

        a ← a + (w − a)/n, w the weights after an epoch and n how many epochs are in the mean, this one included

    Training continues from the weights. The mean is evaluated, saved and returned as `EMA` says. Running statistics of
    normalization layers are averaged, too, which is an approximation: for statistics of the mean weights themselves
    call `torch.optim.swa_utils.update_bn(loader, result.module)` after the run.

    Runs:  after_setup, before_run, before_epoch, around evaluations, after_epoch, after_training, after_run.
    Reads: the weights. Changes them during evaluations, and at the end of training; and the learning rate, if asked to.
    Costs: a copy of all weights, and one more during evaluations, both on their device.

    Args:
        start_epoch: How many epochs are trained before the first one whose weights are in the mean.
        every_epochs: Epochs between two weights in the mean.
        lr: The learning rate of all weights from the beginning of epoch `start_epoch` on; None leaves it.
        average_buffers: As for `EMA`.

    Raises:
        ConfigurationError: a setting is wrong; at the start, where the optimizer's rule averages weights by itself, or
            where `lr` is given and the optimizer's rate is a schedule.

    Source: Izmailov et al. 2018, https://arxiv.org/abs/1803.05407
    """

    remembers: ClassVar[tuple[str, ...]] = (*_WeightAverage.remembers, "epochs_seen")

    start_epoch: int = 0
    every_epochs: int = field(default=1, kw_only=True)
    lr: float | None = field(default=None, kw_only=True)
    epochs_seen: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            check_integer("start_epoch", self.start_epoch, 0),
            check_integer("every_epochs", self.every_epochs, 1),
            check_number("lr", self.lr, at_least=0, also=(None,)),
            check_bool("average_buffers", self.average_buffers),
            where="SWA",
        )

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        super().after_setup(run)
        self.epochs_seen = 0
        if self.average_buffers:
            _warn_of_batch_statistics(run.module)
        if self.lr is not None and any(group.get("schedule") for group in run.optimizer.param_groups):
            raise ConfigurationError(
                "SWA: lr sets a constant learning rate, and that of the optimizer is a schedule: leave lr out, and end "
                "the schedule with the rate that you want, as in schedule.then(Constant(rate), at_step)"
            )

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        if self.lr is not None and epoch.epoch >= self.start_epoch:
            epoch.run.control.set_rate(self.lr)

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`; an epoch is in the mean before its validation."""
        self._take_in(evaluation.epoch)
        super().before_evaluation(evaluation)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._take_in(epoch.finished)
        super().after_epoch(epoch)

    def _take_in(self, finished: int) -> None:
        """Take the weights after so many complete epochs into the mean, once."""
        since = finished - self.start_epoch - 1
        if finished > self.epochs_seen and since >= 0 and since % self.every_epochs == 0:
            self._add(1 / (self.count + 1))
        self.epochs_seen = max(finished, self.epochs_seen)


def _warn_of_batch_statistics(module: torch.nn.Module) -> None:
    """Say that averaged running statistics are not those of the averaged weights."""
    if names := [name for name, _ in module.named_buffers() if name.endswith("running_mean")]:
        more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
        warn(
            f"SWA: {names[0]}{more} averaged as the weights are, which is not the mean under the averaged weights; for "
            "that call torch.optim.swa_utils.update_bn(loader, result.module) after the run"
        )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy to average in, of at least single precision, sharded as the tensor is."""
    import torch

    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.detach().to(torch.float32 if half else tensor.dtype, copy=True)


def _write(values: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy values by name, whole or sharded as the tensors are."""
    import torch

    from descend.runtime.dtensor import copy_into, is_sharded, local_shard

    with torch.no_grad():
        for name, value in values.items():
            if name in tensors and is_sharded(value):
                local_shard(tensors[name]).copy_(local_shard(value))
            elif name in tensors:
                copy_into(tensors[name], value)


def _refuse_averaging_rules(title: str, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that evaluates other weights than it trains, as schedule-free rules do."""
    from descend.optim import Rule

    for group in optimizer.param_groups:
        rule = group.get("rule")
        if isinstance(rule, Rule) and type(rule).averaged is not Rule.averaged:
            raise ConfigurationError(
                f"{title}: {type(rule).__name__} averages the weights by itself and is evaluated at their average: "
                f"leave out {title}, or choose another optimizer"
            )


def evaluated_average(states: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """The averages in a checkpoint by which its run was evaluated, by name; nothing where there are none.

    Args:
        states: States of callbacks in the checkpoint.
    """
    if any(state.get("last_weights") for state in states.values()):
        return {}  # the run had ended, and its weights are what was evaluated
    found: dict[str, torch.Tensor] = {}
    for state in states.values():
        if isinstance(average := state.get("average"), dict):
            found.update(average)
    return found
