"""A whole run as one value: who trains, what, on which data, by which rule."""

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
    """The parts of a run. A prototext is its text form; see `descend.save_prototext` and `descend.experiment.load`.

    Attributes:
        trainer: Mini-batch size, seed and training algorithm.
        model: Layers, weights, objective, metrics and callbacks.
        data_reader: One reader for each role.
        optimizer: The rule for every weights object that has none of its own.

    Raises:
        ConfigurationError: a part is of another kind; all of them are told.
    """

    message: ClassVar[str] = "LbannPB"

    trainer: Trainer
    model: Model
    data_reader: DataReader
    optimizer: Optimizer

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {_named(given)}; expected {kind.__name__}, such as {example}"
            for name, (kind, example) in _PARTS.items()
            if not isinstance(given := getattr(self, name), kind)
        ]
        if problems:
            raise ConfigurationError(problems)


_PARTS: dict[str, tuple[type, str]] = {
    "trainer": (Trainer, "Trainer(mini_batch_size=64)"),
    "model": (Model, "Model(5, objective_function=loss), or Model.from_torch(module, loss=...)"),
    "data_reader": (DataReader, "zoo.digits() or DataReader([Reader(...)]); data in memory go to descend.fit"),
    "optimizer": (Optimizer, "SGD(learn_rate=0.1); an optimizer of torch goes to descend.fit"),
}


def _named(given: object) -> str:
    """A value of somebody's own as a message names it."""
    return "None" if given is None else f"of type {type(given).__name__}"
