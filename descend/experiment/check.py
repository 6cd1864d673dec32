"""Whether an experiment can run, from its description and the headers of its data; all problems in one pass, without
torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from descend.callbacks import Checkpoint
from descend.callbacks.names import problems as unknown_names
from descend.data import open_readers
from descend.errors import ConfigurationError, DataError, DescendError
from descend.experiment.parts import graph_unit
from descend.graph import check as check_graph
from descend.graph import check_optimizer
from descend.train import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.data import OpenReader
    from descend.experiment.experiment import Experiment
    from descend.graph import Plan
    from descend.train import Trainer

__all__ = ["Checked", "check"]


@dataclass(frozen=True)
class Checked:
    """An experiment that was found to be right.

    Attributes:
        plan: Every tensor's shape, every weights' start.
        readers: Open readers by role.
        unit: Samples that micro-batches are made of; None where a mini-batch cannot be cut.
    """

    plan: Plan
    readers: Mapping[str, OpenReader]
    unit: int | None = 1

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
    readers = _attempt(lambda: open_readers(experiment.data_reader, seed), errors)
    fields = {name: field.shape for reader in (readers or {}).values() for name, field in reader.fields.items()}
    plan = _attempt(lambda: check_graph(experiment.model, fields), errors) if readers else None
    _attempt(lambda: check_optimizer(experiment.optimizer, "the default optimizer"), errors)
    algorithm = experiment.trainer.training_algo
    if readers and "train" not in readers and (algorithm is None or algorithm.trains):
        errors.append(ConfigurationError("no reader has the role 'train'; give one of them that role"))
    unit = None
    if plan is not None:
        _attempt(lambda: _check_callbacks(experiment, plan), errors)
        if algorithm is not None and algorithm.trains and not (plan.objective.terms or plan.objective.l2):
            name = experiment.model.name
            errors.append(
                ConfigurationError(f"model '{name}' has no objective to train for: give it objective_function")
            )
    if plan is not None and readers and "train" in readers:
        unit = _attempt(lambda: _unit(experiment.trainer, plan, len(readers["train"])), errors)
    if errors or plan is None or readers is None:
        kind = DataError if all(isinstance(error, DataError) for error in errors) else ConfigurationError
        raise kind([problem for error in errors for problem in error.problems])
    return Checked(plan, readers, unit)


def _unit(trainer: Trainer, plan: Plan, samples: int) -> int | None:
    size = min(trainer.mini_batch_size, samples)
    sizes = {size, samples % size} - {0}
    return graph_unit(plan, sizes, trainer.micro_batch_size)


def _check_callbacks(experiment: Experiment, plan: Plan) -> None:
    """Refuse callbacks in the wrong place and names in them that nothing has."""
    model, trainer = experiment.model.callbacks, experiment.trainer.callbacks
    known = {
        "layer": [layer.name for layer in plan.layers],
        "weights": list(plan.weights),
        "metric": [metric.name for metric in (*plan.metrics, *plan.other_metrics)],
    }
    found = [
        f"{type(callback).__name__} watches a model, and a trainer takes Checkpoint alone; move it to the model"
        for callback in trainer
        if not isinstance(callback, Checkpoint)
    ]
    if found := [*found, *unknown_names([*trainer, *model], known)]:
        raise ConfigurationError(found)


_T = TypeVar("_T")


def _attempt(part: Callable[[], _T], errors: list[DescendError]) -> _T | None:
    """What `part` returns, or None and its error among `errors`."""
    try:
        return part()
    except DescendError as error:
        errors.append(error)
        return None
