"""An experiment as one value: trainer, model, data readers and default optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from descend.data import DataReader
from descend.errors import ConfigurationError
from descend.graph import Model, Optimizer
from descend.train import Trainer

__all__ = ["Experiment"]


@dataclass
class Experiment:
    """The description of a run. Its text form is a prototext; see `descend.save_prototext`, `descend.experiment.load`.

    Attributes:
        trainer: Mini-batch size, seed and training algorithm.
        model: Layers, weights, objective, metrics and callbacks.
        data_reader: One reader for each role.
        optimizer: The optimizer of all weights that have none of their own.

    Raises:
        ConfigurationError: a part has a wrong type; all such parts are listed.
    """

    message: ClassVar[str] = "LbannPB"

    trainer: Trainer
    model: Model
    data_reader: DataReader
    optimizer: Optimizer

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {kind.__name__}, such as {example}; got {_named(given)}"
            for name, (kind, example) in _PARTS.items()
            if not isinstance(given := getattr(self, name), kind)
        ]
        if problems:
            raise ConfigurationError(problems)


_PARTS: dict[str, tuple[type, str]] = {
    "trainer": (Trainer, "Trainer(mini_batch_size=64)"),
    "model": (Model, "Model(5, objective_function=loss), or Model.from_torch(module, loss=...)"),
    "data_reader": (DataReader, "zoo.digits() or DataReader([Reader(...)]); data in memory: use descend.fit"),
    "optimizer": (Optimizer, "SGD(learn_rate=0.1); for a torch optimizer use descend.fit"),
}


def _named(given: object) -> str:
    """A user's value as a message names it."""
    return "None" if given is None else f"a {type(given).__name__}"
