"""A whole run as one value: who trains, what, on which data, by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from descend.data import DataReader
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
    """

    message: ClassVar[str] = "LbannPB"

    trainer: Trainer
    model: Model
    data_reader: DataReader
    optimizer: Optimizer
