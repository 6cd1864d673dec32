"""Checks an experiment by its description and the headers of its data, without torch; reports all problems at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from descend.arguments.leniency import Deviation, refused
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
from descend.experiment.micro_batch_unit import evaluation_unit, graph_unit
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

_SHOWN_NAMES = 8  # a message lists at most this many names and counts the rest
_RAISING = (
    CosineDecayLearningRate,
    LinearGrowthLearningRate,
    MinibatchSchedule,
    PolyLearningRate,
    SetLearningRate,
)  # these set a learning rate other than 0


@dataclass(frozen=True)
class Checked:
    """The result of a check without errors.

    Attributes:
        plan: The checked graph, with all shapes and initializers.
        readers: Open readers by role.
        unit: The unit of micro-batches in samples; None if a mini-batch cannot be split.
        warnings: What can run and is probably not intended.
        seed: The seed by which the readers hold out samples.
    """

    plan: Plan
    readers: Mapping[str, OpenReader]
    unit: int | None = 1
    warnings: tuple[str, ...] = ()
    seed: int = 0

    def with_readers(self, experiment: Experiment, seed: int) -> Checked:
        """The same with readers opened again, for another seed or another user: nothing else depends on either."""
        return replace(self, readers=open_readers(experiment.data_reader, seed), seed=seed)

    @property
    def modes(self) -> list[Mode]:
        """The modes that have data."""
        return [mode for mode in Mode if mode.role in self.readers]


def check(experiment: Experiment, seed: int = 0) -> Checked:
    """Check an experiment before anything runs.

    Args:
        experiment: The description.
        seed: The seed of the run, which determines the samples that are held out.

    Raises:
        ConfigurationError: all problems of graph, readers, optimizers and numbers.
        DataError: the description is correct, but data are missing, damaged or empty.
    """
    errors: list[DescendError] = []
    readers = _readers(experiment, seed, errors)
    offered = {name: field for reader in (readers or {}).values() for name, field in reader.fields.items()}
    fields = {name: field.shape for name, field in offered.items()}
    pieces = {name: field.pieces for name, field in offered.items() if field.pieces}
    plan = _attempt(lambda: check_graph(experiment.model, fields, pieces), errors) if readers else None
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
            problem = f"model '{experiment.model.name}' has no objective"
            if refused(Deviation.NOTHING_TO_LEARN, problem):
                errors.append(ConfigurationError(f"{problem}: give it objective_function"))
    if plan is not None and readers and "train" in readers:
        unit = _attempt(lambda: _unit(experiment.trainer, plan, len(readers["train"])), errors)
    elif plan is not None:
        unit = evaluation_unit(plan)
    large = plan and _attempt(lambda: beyond_memory(plan, _trains(experiment), machine_bytes()), errors)
    if errors or plan is None or readers is None:
        raise _joined(errors)
    return Checked(plan, readers, unit, (*_without_rate(experiment, plan), *(large or ())), seed)


def _without_rate(experiment: Experiment, plan: Plan) -> list[str]:
    """A warning about trainable weights with a learning rate of 0, which LBANN accepts silently.

    A learning rate that is not set is 0, as in LBANN; a schedule may start there.
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
        f"the weights {names}{more} have a learning rate of 0 and are not trained: set {fields}, or give them a "
        "NoOptimizer if that is intended"
    ]


def _unit(trainer: Trainer, plan: Plan, samples: int) -> int | None:
    size = min(trainer.mini_batch_size, samples)
    sizes = {size, samples % size} - {0}
    return graph_unit(plan, sizes, trainer.micro_batch_size)


def check_parts(experiment: Experiment, seed: int) -> Mapping[str, OpenReader]:
    """Check an experiment without its model; returns the open readers by role.

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
        errors.append(ConfigurationError("no reader has the role 'train': give one of them that role"))
    return readers


def _trains(experiment: Experiment) -> bool:
    """Whether anything is trained; a model of 0 epochs is only evaluated."""
    algorithm = experiment.trainer.training_algo or BatchedIterativeOptimizer()
    if isinstance(algorithm, BatchedIterativeOptimizer):
        return algorithm.epochs(experiment.model.epochs) != 0
    return algorithm.trains


def _joined(errors: list[DescendError]) -> DescendError:
    """All problems as one error."""
    kind = DataError if all(isinstance(error, DataError) for error in errors) else ConfigurationError
    return kind([problem for error in errors for problem in error.problems])


def _check_roles(experiment: Experiment, plan: Plan, readers: Mapping[str, OpenReader]) -> None:
    """Refuse readers whose field of the model is missing, or has another shape than that of the first role."""
    described = {reader.role: str(reader) for reader in experiment.data_reader.reader}
    inputs = {one.layer.data_field: one.name for one in reversed(plan.layers) if isinstance(one.layer, Input)}
    found: list[str] = []
    for name, layer in reversed(inputs.items()):
        offered = {role: reader.fields[name].shape for role, reader in readers.items() if name in reader.fields}
        first, shape = next(iter(offered.items()))
        for role in readers:
            if offered.get(role) == shape:
                continue
            given = f"has shape {shown(offered[role])}" if role in offered else "is missing"
            found.append(
                f"{described.get(role, role)}: the field '{name}' of layer '{layer}' {given}, and has shape "
                f"{shown(shape)} in the role {first}; all roles need the same fields and shapes"
            )
    if found:
        raise ConfigurationError(found)


def _check_names(experiment: Experiment, plan: Plan | None) -> None:
    """Refuse callbacks of a trainer that belong to a model, and unknown names in callbacks and algorithms."""
    model, trainer = experiment.model.callbacks, experiment.trainer.callbacks
    known = _described_names(experiment.model) if plan is None else _planned_names(plan)
    found = [
        f"{type(callback).__name__} is a callback of a model, and a trainer takes only Checkpoint: move it to the model"
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
    """The names of an inconsistent model, which has no plan and so no weights and no inserted layers."""
    layers = [layer.name for layer in model.layers]
    inserted = [f"{name}_{what}" for name in layers for what in ("split", "dummy", "eval")]
    return {"layer": [*layers, *inserted], "metric": [metric.name for metric in model.metrics]}


_T = TypeVar("_T")


def _attempt(part: Callable[[], _T], errors: list[DescendError]) -> _T | None:
    """The result of `part`; on an error None, with the error appended to `errors`."""
    try:
        return part()
    except DescendError as error:
        errors.append(error)
        return None
