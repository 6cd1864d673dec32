"""Whether an experiment can run, from its description and the headers of its data; all problems in one pass, without
torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from descend.callbacks import (
    Checkpoint,
    CosineDecayLearningRate,
    LinearGrowthLearningRate,
    MinibatchSchedule,
    PolyLearningRate,
    SetLearningRate,
)
from descend.callbacks.name_fields import problems as unknown_names
from descend.callbacks.name_fields import require_extra, require_samples
from descend.data import open_readers
from descend.errors import ConfigurationError, DataError, DescendError
from descend.experiment.inspect.memory_estimate import beyond_memory, machine_bytes
from descend.experiment.micro_batch_unit import graph_unit
from descend.graph import Input, check_optimizer
from descend.graph import check as check_graph
from descend.graph.layer import shown
from descend.train import LTFB, BatchedInference, BatchedIterativeOptimizer, Callback, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.data import OpenReader
    from descend.experiment.experiment import Experiment
    from descend.graph import Model, Plan
    from descend.train import Trainer

__all__ = ["Checked", "check", "check_parts"]

_SHOWN_NAMES = 8  # a message lists as many names and counts the rest
_RAISING = (
    CosineDecayLearningRate,
    LinearGrowthLearningRate,
    MinibatchSchedule,
    PolyLearningRate,
    SetLearningRate,
)  # these lead a rate away from 0


@dataclass(frozen=True)
class Checked:
    """An experiment that was found to be right.

    Attributes:
        plan: Every tensor's shape, every weights' start.
        readers: Open readers by role.
        unit: Samples that micro-batches are made of; None where a mini-batch cannot be cut.
        warnings: What can be run and is hardly meant.
    """

    plan: Plan
    readers: Mapping[str, OpenReader]
    unit: int | None = 1
    warnings: tuple[str, ...] = ()

    @property
    def modes(self) -> list[Mode]:
        """What there is data for."""
        return [mode for mode in Mode if mode.role in self.readers]


def check(experiment: Experiment, seed: int = 0) -> Checked:
    """Find all that is wrong with an experiment before anything is started.

    Args:
        experiment: The description.
        seed: The run's; it decides which samples are held out.

    Raises:
        ConfigurationError: everything that is wrong with graph, readers, rules and numbers.
        DataError: nothing is wrong with the description, and data are missing, damaged or empty.
    """
    errors: list[DescendError] = []
    readers = _readers(experiment, seed, errors)
    fields = {name: field.shape for reader in (readers or {}).values() for name, field in reader.fields.items()}
    plan = _attempt(lambda: check_graph(experiment.model, fields), errors) if readers else None
    algorithm = experiment.trainer.training_algo
    unit = None
    _attempt(lambda: _check_names(experiment, plan), errors)
    if plan is not None:
        _attempt(lambda: _check_roles(experiment, plan, readers or {}), errors)
        modes = [mode for mode in Mode if mode.role in (readers or {})]
        for callback in (one for one in experiment.model.callbacks if isinstance(one, Callback)):
            _attempt(partial(require_samples, callback, modes), errors)
            _attempt(partial(require_extra, callback), errors)
        if isinstance(algorithm, BatchedInference):
            _attempt(lambda: algorithm.check_modes(modes), errors)
        if isinstance(algorithm, LTFB):
            _attempt(lambda: algorithm.check([metric.name for metric in plan.metrics], list(readers or {})), errors)
        if algorithm is not None and _trains(experiment) and not (plan.objective.terms or plan.objective.l2):
            name = experiment.model.name
            errors.append(
                ConfigurationError(f"model '{name}' has no objective to train for: give it objective_function")
            )
    if plan is not None and readers and "train" in readers:
        unit = _attempt(lambda: _unit(experiment.trainer, plan, len(readers["train"])), errors)
    large = plan and _attempt(lambda: beyond_memory(plan, _trains(experiment), machine_bytes()), errors)
    if errors or plan is None or readers is None:
        raise _joined(errors)
    return Checked(plan, readers, unit, (*_without_rate(experiment, plan), *(large or ())))


def _without_rate(experiment: Experiment, plan: Plan) -> list[str]:
    """What is to be said of weights that are to be trained with a rate of 0, which LBANN takes without a word.

    A rate that was not written is 0, as in LBANN; a schedule may begin there.
    """
    if not _trains(experiment) or any(isinstance(one, _RAISING) for one in experiment.model.callbacks):
        return []
    rules = {
        name: weights.optimizer or experiment.optimizer for name, weights in plan.weights.items() if weights.trainable
    }
    still = [name for name, rule in rules.items() if rule.stands_still]
    if not still:
        return []
    more = f" and {len(still) - _SHOWN_NAMES} more" if len(still) > _SHOWN_NAMES else ""
    names = ", ".join(f"'{name}'" for name in still[:_SHOWN_NAMES])
    fields = " and ".join(dict.fromkeys(field for name in still for field in rules[name].rates))
    return [
        f"the weights {names}{more} are to be trained with a rate of 0, so they stay as they are: set {fields}, "
        "or give them a NoOptimizer if that is meant"
    ]


def _unit(trainer: Trainer, plan: Plan, samples: int) -> int | None:
    size = min(trainer.mini_batch_size, samples)
    sizes = {size, samples % size} - {0}
    return graph_unit(plan, sizes, trainer.micro_batch_size)


def check_parts(experiment: Experiment, seed: int) -> Mapping[str, OpenReader]:
    """Find all that is wrong with an experiment beside its model; returns the open readers by role.

    Raises:
        ConfigurationError, DataError: as `check`.
    """
    errors: list[DescendError] = []
    readers = _readers(experiment, seed, errors)
    if errors or readers is None:
        raise _joined(errors)
    return readers


def _readers(experiment: Experiment, seed: int, errors: list[DescendError]) -> Mapping[str, OpenReader] | None:
    readers = _attempt(lambda: open_readers(experiment.data_reader, seed), errors)
    _attempt(lambda: check_optimizer(experiment.optimizer, "the default optimizer"), errors)
    if readers and "train" not in readers and _trains(experiment):
        errors.append(ConfigurationError("no reader has the role 'train'; give one of them that role"))
    return readers


def _trains(experiment: Experiment) -> bool:
    """Whether there is anything to train; a model of 0 epochs is evaluated alone."""
    algorithm = experiment.trainer.training_algo or BatchedIterativeOptimizer()
    if isinstance(algorithm, BatchedIterativeOptimizer):
        return algorithm.epochs(experiment.model.epochs) != 0
    return algorithm.trains


def _joined(errors: list[DescendError]) -> DescendError:
    """All problems as one error."""
    kind = DataError if all(isinstance(error, DataError) for error in errors) else ConfigurationError
    return kind([problem for error in errors for problem in error.problems])


def _check_roles(experiment: Experiment, plan: Plan, readers: Mapping[str, OpenReader]) -> None:
    """Refuse readers that give a field of the model in another shape than that of the first role, or not at all."""
    described = {reader.role: str(reader) for reader in experiment.data_reader.reader}
    inputs = {one.layer.data_field: one.name for one in reversed(plan.layers) if isinstance(one.layer, Input)}
    found: list[str] = []
    for name, layer in reversed(inputs.items()):
        offered = {role: reader.fields[name].shape for role, reader in readers.items() if name in reader.fields}
        first, shape = next(iter(offered.items()))
        for role in readers:
            if offered.get(role) == shape:
                continue
            given = f"as {shown(offered[role])}" if role in offered else "not at all"
            found.append(
                f"{described.get(role, role)}: gives the field '{name}' of layer '{layer}' {given}, and that of the "
                f"role {first} gives it as {shown(shape)}; all roles go through one model, so give it in one shape"
            )
    if found:
        raise ConfigurationError(found)


def _check_names(experiment: Experiment, plan: Plan | None) -> None:
    """Refuse callbacks in the wrong place, and names in callbacks and algorithms that nothing has."""
    model, trainer = experiment.model.callbacks, experiment.trainer.callbacks
    known = _described_names(experiment.model) if plan is None else _planned_names(plan)
    found = [
        f"{type(callback).__name__} watches a model, and a trainer takes Checkpoint alone; move it to the model"
        for callback in trainer
        if not isinstance(callback, Checkpoint)
    ]
    if found := [*found, *unknown_names([*trainer, *model, experiment.trainer.training_algo], known)]:
        raise ConfigurationError(found)


def _planned_names(plan: Plan) -> dict[str, list[str]]:
    return {
        "layer": [layer.name for layer in plan.layers],
        "weights": list(plan.weights),
        "metric": [metric.name for metric in (*plan.metrics, *plan.other_metrics)],
    }


def _described_names(model: Model) -> dict[str, list[str]]:
    """The names of a model that does not fit together, in which weights are not made and layers not inserted."""
    layers = [layer.name for layer in model.layers]
    inserted = [f"{name}_{what}" for name in layers for what in ("split", "dummy", "eval")]
    return {"layer": [*layers, *inserted], "metric": [metric.name for metric in model.metrics]}


_T = TypeVar("_T")


def _attempt(part: Callable[[], _T], errors: list[DescendError]) -> _T | None:
    """What `part` returns, or None and its error among `errors`."""
    try:
        return part()
    except DescendError as error:
        errors.append(error)
        return None
