"""Averages of the weights over the steps of a run, which are evaluated, saved and given back in place of the weights.

    EMA    a ← a + (1 − d)(w − a) after every update: the exponential moving average
    SWA    a ← a + (w − a)/n after every epoch from some epoch on: stochastic weight averaging

Training continues from the weights themselves. The averages are in the state of the callback, hence in each checkpoint.
A run may have several: the first one is evaluated, saved and given back; the others are measured beside it.

Sources: Polyak and Juditsky 1992, https://doi.org/10.1137/0330046; Izmailov et al. 2018,
https://arxiv.org/abs/1803.05407
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_bool, check_integer, check_number, check_string, require
from descend.errors import ConfigurationError, nearest, warn
from descend.torch_private import version_counter
from descend.train import Callback
from descend.train.callback import Beginning

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
    name: str = field(default="", kw_only=True)
    average: dict[str, torch.Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    last_weights: dict[str, torch.Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    count: int = field(default=0, init=False, repr=False, compare=False)  # weights that are in the average
    _run: Any = field(default=None, init=False, repr=False, compare=False)
    _written: int = field(default=-1, init=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        """By what rows and checkpoints call this average."""
        raise NotImplementedError(f"{type(self).__name__} has no name")

    @property
    def saved_as(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # it is only read
        """See `Callback`."""
        return self.label

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        _refuse_averaging_rules(type(self).__name__, run.optimizer)
        self.average = self.last_weights = None
        self.count, self._run = 0, run
        run.control.evaluated.check_names()

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        from descend.train.evaluation import write_weights

        tensors = self._tensors()
        if self.last_weights is not None:  # the run had ended, with the average in the module
            write_weights(self.last_weights, tensors)
            self.last_weights = None
        if self.average is not None:  # from a checkpoint, in main memory and whole
            saved, self.average = self.average, {name: _copy(tensor) for name, tensor in tensors.items()}
            write_weights(saved, self.average)
        self._written = self._versions()

    def take_in(self, finished: int) -> None:
        """See `descend.train.evaluation.AveragingCallback.take_in`."""

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`."""
        if self.average is not None and self.last_weights is None and self._is_first:
            self._run.control.evaluated.put_in(self.average)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._written = self._versions()

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        from descend.train.evaluation import write_weights

        others_wrote = self._versions() != self._written  # as EarlyStopping with restore_best, which comes before
        if self.average is not None and not others_wrote and self._is_first:
            self.last_weights = self._whole(self._tensors())
            write_weights(self.average, self._tensors())

    def state(self) -> dict[str, Any]:
        """See `Callback.state`; a checkpoint has the weights of training, and the average here."""
        average = None if self.average is None else self._whole(self.average)
        return {**super().state(), "average": average, "name": self.label, "place": self._place}

    @property
    def _place(self) -> int:
        return self._run.control.evaluated.place(self)

    @property
    def _is_first(self) -> bool:
        """Whether this average is the one that evaluations, checkpoints and the end of the run have."""
        return self._place == 0

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
        """The values that are averaged: floating-point weights in training and, if asked for, buffers."""
        module, found = self._run.module, self._run.control.evaluated.trained
        kept = found if self.average_buffers else {name: found[name] for name, _ in module.named_parameters()}
        return {name: tensor for name, tensor in kept.items() if tensor.is_floating_point() or tensor.is_complex()}

    def _whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies in main memory; every rank of a sharded module has to ask."""
        from descend.runtime.dtensor import full_tensor

        return {name: full_tensor(tensor).to("cpu", copy=True) for name, tensor in tensors.items()}

    def _versions(self) -> int:
        """A number that grows with each write into the parameters."""
        return sum(version_counter(p) for p in self._run.module.parameters())


@dataclass
class EMA(_WeightAverage):
    """Evaluates, saves and ends with the exponential moving average of the weights.

        a ← a + (1 − d)(w − a) after every `every_steps` updates; the first weights are the first average

    Training continues from the weights. The average is what validation and test samples are evaluated with, what
    `EarlyStopping(restore_best=True)` keeps, what `load_weights` loads, and what is in the module at the end.

    Of several averages of a run, EMA and SWA, all this holds for the first one in the list. The others are measured in
    the same evaluations, as "NAME/objective" in the same rows, and are in `result.averages`.

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
        name: What rows and checkpoints call it, where a run has several; empty is "ema_DECAY", such as "ema_0.999".

    Raises:
        ConfigurationError: a setting is wrong; at the start, where the optimizer's rule averages weights by itself, or
            where two averages have one name.

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
            _check_name(self.name),
            where="EMA",
        )

    @property
    def label(self) -> str:
        """See `_WeightAverage.label`."""
        return self.name or f"ema_{self.decay!r}"

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`."""
        first = -(-max(self.start_step, 1) // self.every_steps) * self.every_steps
        setting = f"start_step={self.start_step}" if self.start_step else f"every_steps={self.every_steps}"
        return Beginning(setting, "updates", first)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step >= self.start_step and step.step % self.every_steps == 0:
            kept = min(self.decay, (1 + self.count) / (10 + self.count)) if self.warmup else self.decay
            self._add(1 - kept)


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
        name: As for `EMA`; empty is "swa_START_EPOCH", such as "swa_2".

    Raises:
        ConfigurationError: a setting is wrong; at the start, where the optimizer's rule averages weights by itself,
            where two averages have one name, or where `lr` is given and the optimizer's rate is a schedule.

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
            _check_name(self.name),
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

    @property
    def label(self) -> str:
        """See `_WeightAverage.label`."""
        return self.name or f"swa_{self.start_epoch}"

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`."""
        return Beginning(f"start_epoch={self.start_epoch}", "epochs", self.start_epoch + 1)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`; an epoch that is validated is in the mean before."""
        self.take_in(epoch.finished)
        super().after_epoch(epoch)

    def take_in(self, finished: int) -> None:
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


def _check_name(name: object) -> str | None:
    """The problem with the name of an average, which stands before a slash in the rows of a run."""
    if isinstance(name, str) and "/" in name:
        return f"name must be a word without '/', got {name!r}"
    return check_string("name", name, one_line=True)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy to average in, of at least single precision, sharded as the tensor is."""
    import torch

    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.detach().to(torch.float32 if half else tensor.dtype, copy=True)


def _refuse_averaging_rules(title: str, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that evaluates other weights than it trains, as schedule-free rules do."""
    from descend.train.optional_classes import is_averaging

    for group in optimizer.param_groups:
        if is_averaging(rule := group.get("rule")):
            raise ConfigurationError(
                f"{title}: {type(rule).__name__} averages the weights by itself and is evaluated at their average: "
                f"leave out {title}, or choose another optimizer"
            )


def evaluated_average(states: Mapping[str, Mapping[str, Any]], name: str | None = None) -> dict[str, torch.Tensor]:
    """An average in a checkpoint by the names of its weights; nothing where there is none.

    Args:
        states: States of callbacks in the checkpoint.
        name: What the run calls the average; None for the one by which it was evaluated.

    Raises:
        ConfigurationError: no average has this name.
    """
    ended = any(state.get("last_weights") for state in states.values())
    found = [state for state in states.values() if isinstance(state.get("average"), dict)]
    if name is None:  # of a run that had ended, its weights are what was evaluated
        first = min(found, key=lambda state: int(state.get("place", 0)), default={})
        return {} if ended or first.get("place", 0) else first.get("average", {})
    named = {str(state["name"]): state for state in found if "name" in state}
    if name not in named:
        there = f"those of this checkpoint are {', '.join(named)}" if named else "this checkpoint has none"
        raise ConfigurationError(f"there is no average '{name}'{nearest(name, named) or ';'} {there}")
    return {} if named[name].get("last_weights") else named[name]["average"]
