"""Phases: several losses and optimizers over parts of one module, whose updates alternate, as in a GAN.

    descend.fit(
        gan,
        [
            descend.Phase("discriminator", discriminator_loss, weights=["discriminator.*"], updates=2),
            descend.Phase("generator", generator_loss, weights=["generator.*"]),
        ],
        images,
        optimizer=functools.partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999)),
        ...
    )

Each step of the run is one update of one phase by one mini-batch: here two of the discriminator, one of the generator,
and so on. Which phase a step belongs to is a function of its number, so a run that is resumed continues where it was.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.arguments import check_each, check_integer, check_string, require, shown
from descend.arguments.parameter_filter import ParameterInfo, matches
from descend.arguments.strict_keywords import StrictKeywords
from descend.data.nested_fields import nested
from descend.errors import ConfigurationError, nearest
from descend.experiment.build_optimizer import build_optimizer
from descend.experiment.losses import FunctionLoss, describe
from descend.experiment.metrics import check_metric_names
from descend.experiment.module_task import ModuleTask
from descend.train.objective import Losses, Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from descend.train.micro_batch import MicroBatch
    from descend.train.optimizers.phased import PhasedOptimizer

__all__ = ["Phase", "PhasedTask", "build_phased_optimizer", "metrics_of_phases", "phase_of_step", "phases_of"]


@dataclass(frozen=True)
class Phase(metaclass=StrictKeywords):
    """One of several kinds of updates of a run, which alternate; `fit` takes a list of them as its loss.

    In its updates only its own weights require gradients, so the loss may go through all of the module.

    Args:
        name: By what rows of the history call its loss, and `learning_rate/NAME` its rate.
        loss: A function `(module, *fields)` that returns the mean over the samples, or `(numerator, denominator)`.
            Fields are those of a sample: by position from tuples, by name from dictionaries. What it draws with torch's
            generators is a function of the seed and the step.
        weights: Names of the weights that it trains, or patterns such as "generator.*".
        optimizer: Of these weights; None takes that of `fit`, constructed for them.
        updates: How many in a row.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    name: str
    loss: Callable[..., Any]
    weights: Sequence[str]
    optimizer: Any = None
    updates: int = 1

    def __post_init__(self) -> None:
        problems = [
            check_string("name", self.name, empty=False, one_line=True),
            *check_each("weights", self.weights, check_string, "a list of names or patterns"),
            check_integer("updates", self.updates, 1),
            None if callable(self.loss) else f"loss must be a function (module, *fields), got {shown(self.loss)}",
        ]
        if not problems[1:-2] and not list(self.weights):
            problems.append("weights is empty, so it would train nothing")
        if self.name in ("objective", "seconds", "samples", "mode", "epoch", "step"):
            problems.append(f"name '{self.name}' is that of another entry of a row; choose another one")
        require(*problems, where="Phase")

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.loss)} of {', '.join(self.weights)}, {self.updates} in a row"


def phases_of(loss: Any) -> tuple[Phase, ...]:
    """The phases where the loss of a `fit` is a list of them; none where it is something else.

    Raises:
        ConfigurationError: some are no phases, or two have one name.
    """
    given = [loss] if isinstance(loss, Phase) else loss
    if not isinstance(given, (list, tuple)) or not any(isinstance(one, Phase) for one in cast("list[Any]", given)):
        return ()
    phases = tuple(cast("list[Any]", given))
    if wrong := [one for one in phases if not isinstance(one, Phase)]:
        raise ConfigurationError(f"a list of phases holds phases alone, got {shown(wrong[0])}")
    names = [phase.name for phase in phases]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(f"two phases have the name '{twice[0]}'")
    return phases


def metrics_of_phases(phases: Sequence[Phase], metrics: Any) -> dict[str, Callable[..., Any]]:
    """The metrics of a run of phases by name: functions of the module and the fields of a sample, as losses are.

    Raises:
        ConfigurationError: they are no functions by name, or one has the name of a phase.
    """
    wanted = "metrics of phases are a dict of functions (module, *fields) by name, measured in evaluations"
    if not metrics:
        return {}
    if not isinstance(metrics, dict):
        raise ConfigurationError(f"{wanted}; got {shown(metrics)}, and there is no output of a module to compare")
    given = cast("dict[Any, Any]", metrics)
    check_metric_names(given)
    problems = [f"{wanted}; {shown(name)} is {shown(one)}" for name, one in given.items() if not callable(one)]
    taken = {phase.name for phase in phases}
    problems += [f"metric '{name}' has the name of a phase; choose another one" for name in given if name in taken]
    if problems:
        raise ConfigurationError(problems)
    return {str(name): one for name, one in given.items()}


def phase_of_step(phases: Sequence[Phase], step: int) -> Phase:
    """The phase of the update that follows `step` updates."""
    place = step % sum(phase.updates for phase in phases)
    for phase in phases:
        if place < phase.updates:
            return phase
        place -= phase.updates
    raise AssertionError("the place is below the sum")


def build_phased_optimizer(phases: Sequence[Phase], optimizer: Any, module: torch.nn.Module) -> PhasedOptimizer:
    """The optimizers of all phases.

    Args:
        phases: The phases.
        optimizer: That of phases without one of their own.
        module: The module.

    Raises:
        ConfigurationError: names match no weights, weights are of two phases or of none, or an optimizer is wrong.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    problems: list[str] = []
    owned: dict[str, str] = {}
    for phase in phases:
        for rule in phase.weights:
            mine = [name for name, p in trained.items() if matches(rule, ParameterInfo(name, p.ndim, False, False))]
            if not mine:
                problems.append(f"phase '{phase.name}': '{rule}' matches no trainable weights{nearest(rule, trained)}")
            for name in mine:
                if owned.setdefault(name, phase.name) != phase.name:
                    problems.append(f"weights '{name}' are of the phases '{owned[name]}' and '{phase.name}'")
    problems += [
        f"weights '{name}' are trained by no phase; freeze them with requires_grad_(False) if intended"
        for name in trained
        if name not in owned
    ]
    if problems:
        raise ConfigurationError(problems)
    parts: dict[str, torch.optim.Optimizer] = {}
    for phase in phases:
        mine = [(name, p) for name, p in trained.items() if owned[name] == phase.name]
        made = build_optimizer(optimizer if phase.optimizer is None else phase.optimizer, mine)
        if len(made.param_groups) == 1:
            made.param_groups[0].setdefault("name", phase.name)
        parts[phase.name] = made
    from descend.train.optimizers.phased import PhasedOptimizer

    return PhasedOptimizer(parts)


class PhasedTask(ModuleTask):
    """A module that several phases train in turns. Training gives the loss of one phase, an evaluation those of all.

    Args:
        module: What is trained.
        phases: The phases.
        optimizer: Their optimizers.
        autocast: As for `ModuleTask`.
        metrics: As for `metrics_of_phases`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        phases: Sequence[Phase],
        optimizer: PhasedOptimizer,
        autocast: torch.dtype | None = None,
        metrics: Any = None,
    ) -> None:
        super().__init__(module, FunctionLoss(phases[0].loss), {}, (), autocast)
        self._phases, self._optimizer = phases, optimizer
        self.functions = {phase.name: phase.loss for phase in phases}
        # What an evaluation measures beside the phases; a phase is what names a function and its calls.
        self._extra_metrics = [Phase(name, one, ["*"]) for name, one in metrics_of_phases(phases, metrics).items()]
        self._fitting = set[str]()  # phases whose loss takes the fields of a sample

    def losses(self, micro_batch: MicroBatch) -> Losses:
        """See `descend.train.objective.Task.losses`; the objective of an evaluation is the loss of the first phase."""
        self._before_forward(micro_batch)
        with self._call.precision(micro_batch.fields):
            if not torch.is_grad_enabled():
                measured = (*self._phases, *self._extra_metrics)
                found = {phase.name: self._ratio(phase, micro_batch.fields) for phase in measured}
                return Losses(found[self._phases[0].name], found)
            phase = phase_of_step(self._phases, micro_batch.step)
            self._optimizer.begin(phase.name)
            ratio = self._ratio(phase, micro_batch.fields)
            return Losses(ratio, {phase.name: Ratio(ratio.numerator.detach(), ratio.denominator)})

    def pass_through(self, fields: Mapping[str, Tensor]) -> None:
        """See `ModuleTask.pass_through`."""
        for phase in self._phases:
            self._ratio(phase, fields)

    def _ratio(self, phase: Phase, fields: Mapping[str, Tensor]) -> Ratio:
        """The loss of a phase over a micro-batch."""
        values = nested(fields) if any("/" in name for name in fields) else fields
        by_position = all(name.isdecimal() for name in values)
        given, named = (list(values.values()), {}) if by_position else ([], dict(values))
        if phase.name not in self._fitting:
            _check_arguments(phase, given, named)
            self._fitting.add(phase.name)
        loss = FunctionLoss(functools.partial(phase.loss, **named), fits=True)
        ratio = loss.ratio(self.module, given, len(next(iter(fields.values()))))
        loss.look_at_count(ratio)
        return ratio


def _check_arguments(phase: Phase, given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuse a loss that does not take the module and the fields of a sample."""
    try:
        signature = inspect.signature(phase.loss)
    except (TypeError, ValueError):  # a function of C
        return
    try:
        signature.bind(None, *given, **named)
    except TypeError as error:
        fields = f"fields by name ({', '.join(named)})" if named else f"{len(given)} fields"
        raise ConfigurationError(
            f"phase '{phase.name}': loss {describe(phase.loss)}{signature} is called with the module and {fields} of "
            f"the samples: {error}"
        ) from None
