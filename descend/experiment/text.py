"""The text form of an experiment: the class of each message, reading and writing of prototexts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend import callbacks, data, train
from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, TextError
from descend.experiment.experiment import Experiment
from descend.graph import CLASSES, Model, TorchModel, text
from descend.train.population.ltfb import VARIANTS
from descend.train.stopping import limits_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from descend.data import DataReader
    from descend.graph import Optimizer
    from descend.train import Stop, Trainer

__all__ = [
    "classes",
    "experiment_of",
    "experiment_text",
    "load",
    "read_parts",
    "run_text",
    "save_prototext",
]

_PARTS = {
    "trainer": "batch size, seed and algorithm",
    "model": "layers and objective",
    "data_reader": "training data",
    "optimizer": "default optimizer",
}


def classes() -> Mapping[str, type]:
    """The class of every message of an experiment, by the name of the message."""
    algorithms = (train.BatchedIterativeOptimizer, train.BatchedInference, train.KFAC, train.LTFB)
    exchanges = (train.RandomPairwiseExchange, train.TruncationSelectionExchange, train.RegularizedEvolution)
    parts = (train.ExchangeStrategy, train.MutationStrategy, *VARIANTS)
    limits = (train.Limits, train.AnyOfLimits, train.AllOfLimits, train.ReachedLimit)
    coordinated = (train.DataCoordinator, train.TransformDataField)
    own = (Experiment, train.Trainer, *coordinated, *algorithms, *limits, *exchanges, *parts)
    watching = (getattr(callbacks, name) for name in callbacks.__all__)
    described = {kind.message: kind for kind in (*own, *watching) if hasattr(kind, "message")}
    return {**CLASSES, **data.MESSAGES, **described}


def load(*files: str | os.PathLike[str]) -> Experiment:
    """Read an experiment from one prototext, or from several that hold a part each.

    Raises:
        TextError: all problems of the texts, each with file:line:column, and all missing parts.
    """
    return experiment_of(read_parts(*files), files)


def read_parts(*files: str | os.PathLike[str], edit: Callable[[Any], None] = lambda message: None) -> dict[str, Any]:
    """The parts of an experiment that some files hold, by the names of the fields.

    Args:
        files: Prototexts, or binary files whose name says protobin.
        edit: Called with the message of each file before values are made of it, to change fields in place.

    Raises:
        TextError: all problems of the texts, each with file:line:column.
    """
    parts: dict[str, Any] = {}
    for file in files:
        parsed = text.read(Path(file))
        edit(parsed.message)
        _leave_out_metadata(parsed.message, file)
        found = text.to_value(parsed, {**classes(), "LbannPB": _Parts})
        for name, value in found.fields.items():
            if name in parts:
                raise TextError(f"{file}: '{name}' is also in another of the files; leave one out")
            parts[name] = value
    return parts


def experiment_of(parts: Mapping[str, Any], files: Sequence[str | os.PathLike[str]]) -> Experiment:
    """The experiment of the parts that were read.

    Args:
        parts: By name, as `read_parts` returns them.
        files: Where they come from, for errors.

    Raises:
        TextError: all missing parts.
    """
    names = ", ".join(map(str, files))
    missing = [
        f"{names}: {name} ({what}) is missing; add {name} {{ ... }}"
        for name, what in _PARTS.items()
        if name not in parts
    ]
    if missing:
        raise TextError(missing)
    experiment = Experiment(**{name: parts[name] for name in _PARTS})
    algorithm = parts.get("training_algorithm")
    if algorithm is not None and experiment.trainer.training_algo is None:
        experiment.trainer.training_algo = algorithm
    return experiment


def _leave_out_metadata(message: Any, file: str | os.PathLike[str]) -> None:
    """Drop what only readers of one project would ask for, where that is allowed."""
    problem = f"{file}: data_set_metadata describes data of readers that are not here"
    if message.HasField("data_set_metadata") and not refused(Deviation.SETTING_WITHOUT_EFFECT, problem):
        message.ClearField("data_set_metadata")


class _Parts:
    """The parts of an experiment in one file."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> _Parts:
        return cls(fields)


def run_text(experiment: Experiment) -> str:
    """The prototext of a run, for its directory; parts without a text form are left out and named in a comment."""
    trainer, model = experiment.trainer, experiment.model
    known = [callback for callback in model.callbacks if hasattr(callback, "message")]
    left_out = [type(callback).__name__ for callback in model.callbacks if not hasattr(callback, "message")]
    algorithm = trainer.training_algo
    stop = getattr(algorithm, "stop", None)
    if stop is not None and not _has_text(stop):
        left_out.append(f"stop={stop!r}")
        trainer = replace(trainer, training_algo=None)
    if isinstance(model, TorchModel):
        left_out.append(f"the module of model '{model.name}', so this text does not repeat the run")
    if left_out:
        written = Model(model.epochs, name=model.name) if isinstance(model, TorchModel) else copy.copy(model)
        written.callbacks = known
        experiment = Experiment(trainer, written, experiment.data_reader, experiment.optimizer)
    notes = "".join(f"# left out, because it has no text form: {name}\n" for name in left_out)
    return notes + text.render(experiment)


def _has_text(stop: Stop) -> bool:
    try:
        limits_of(stop)
    except ConfigurationError:
        return False
    return True


def experiment_text(experiment: Experiment) -> str:
    """The prototext of an experiment; `load` of it gives the same experiment."""
    return text.render(experiment)


def save_prototext(
    path: str | os.PathLike[str],
    trainer: Trainer,
    model: Model,
    data_reader: DataReader,
    optimizer: Optimizer,
    *,
    binary: bool = False,
) -> None:
    """Write an experiment to a file. With a seed set, `descend run` of it repeats the run to the last bit.

    Args:
        path: The file; replaced if it exists.
        trainer: Batch size, seed and algorithm.
        model: Layers, objective and callbacks.
        data_reader: The data.
        optimizer: The default optimizer.
        binary: Write Protobuf's binary form.

    Raises:
        ConfigurationError: a part has no text form.
        StorageError: the file cannot be written.
    """
    from descend.runtime.run_directory import write_beside

    experiment = Experiment(trainer, model, data_reader, optimizer)
    write_beside(Path(path), text.render_binary(experiment) if binary else text.render(experiment))
