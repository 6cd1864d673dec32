"""Workloads that no script makes: the model and data of an experiment's prototext, and networks of the zoo.

    "lenet.prototext"    layers, objective, metrics and readers of an experiment; optimizer, batch size and number of
                         updates are the study's
    "zoo:lenet"          what `descend demo` trains
    "zoo:ResNet18", ...  a network of `descend.zoo` that gives logits; further options are its own

Options of the zoo: `data = "digits"`, which come with the package, or "fashion-mnist".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from descend.data import open_readers
from descend.errors import ConfigurationError, nearest
from descend.experiment import load
from descend.graph import (
    BatchNormalization,
    CategoricalAccuracy,
    Convolution,
    CrossEntropy,
    Deconvolution,
    DistEmbedding,
    Embedding,
    EntrywiseBatchNormalization,
    Input,
    InstanceNorm,
    LayerNorm,
    Metric,
    Model,
    Softmax,
    check,
)
from descend.lower import lower
from descend.runtime import generator
from descend.study.task import StudyTask

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from descend.data import DataReader, OpenReader
    from descend.graph import Plan, PlannedWeights

__all__ = ["of_prototext", "of_zoo"]

_NORMS = (BatchNormalization, EntrywiseBatchNormalization, LayerNorm, InstanceNorm)
_CLASSES = 10  # of both data sets
_DATA = {"digits": "digits", "fashion-mnist": "fashion_mnist"}  # and the functions of the zoo that describe them
_ROLES = {"train": "train", "validate": "validation", "test": "test"}  # of a reader, and of a task


def of_prototext(path: Path) -> StudyTask:
    """The model and data of an experiment.

    Raises:
        TextError: the file is not an experiment.
        GraphError: its layers do not fit together.
        ConfigurationError: its weights have optimizers of their own.
        DataError: its data cannot be read.
    """
    experiment = load(path)
    return _task(experiment.model, experiment.data_reader)


def of_zoo(name: str, options: Mapping[str, Any]) -> StudyTask:
    """A network of the zoo.

    Args:
        name: "lenet", or the name of a network.
        options: `data`, and those of the network.

    Raises:
        ConfigurationError: there is no such network or data set, or no such option.
    """
    from descend import zoo  # its modules are many, and most studies train others

    own = dict(options)
    data = str(own.pop("data", "digits"))
    if data not in _DATA:
        raise ConfigurationError(f"there is no data set '{data}'{nearest(data, _DATA) or ';'} {', '.join(_DATA)}")
    if name == "lenet":
        if own:
            raise ConfigurationError(f"workload 'zoo:lenet' has the option data alone, and not {', '.join(own)}")
        demo = zoo.demo_experiment(data)
        return _task(demo.model, demo.data_reader)
    kinds = {kind: getattr(zoo, kind) for kind in zoo.__all__ if _is_network(kind)}
    if name not in kinds:
        known = ("lenet", *kinds)
        raise ConfigurationError(f"the zoo has no network '{name}'{nearest(name, known) or ';'} {', '.join(known)}")
    images, labels = Input(data_field="samples", name="images"), Input(data_field="labels", name="labels")
    try:
        sizes = own.pop("sizes", (32, _CLASSES)) if name == "MLP" else _CLASSES
        network: Any = kinds[name](sizes, **{"name": name.lower(), **own})  # first values are drawn by name
    except TypeError as error:
        raise ConfigurationError(f"workload 'zoo:{name}': {error}") from error
    probabilities = Softmax(network(images), name="probabilities")
    model = Model(
        1,
        objective_function=CrossEntropy(probabilities, labels, name="cross_entropy"),
        metrics=[Metric(CategoricalAccuracy(probabilities, labels, name="accuracy"), name="accuracy")],
        name=name,
    )
    return _task(model, getattr(zoo, _DATA[data])())


def _is_network(name: str) -> bool:
    return name in ("MLP", "LeNet", "AlexNet") or "ResNet" in name


class _Graph(torch.nn.Module):
    """A graph as a study trains it: from the fields of samples to a row of numbers for each.

    A row holds the objective, with the penalty on the weights, and then the metrics. Weights have the first values that
    torch's generator says.

    Attributes:
        weight_roles: Of every trained weight, by its name.
        runs_alone: Why several of these cannot run at once; empty if they can.
    """

    def __init__(self, plan: Plan, fields: tuple[str, ...]) -> None:
        super().__init__()
        seed = int(torch.randint(2**62, ()).item())
        self.graph = lower(plan, lambda name: generator(seed, "weights", name))
        self.fields = fields
        self.plan = plan
        trained = dict(self.graph.named_parameters())
        self.weight_roles = {f"graph.{name}": _role(plan, plan.weights[name]) for name in trained}
        self.runs_alone = "a graph is run one module at a time"

    def forward(self, *rows: Tensor) -> Tensor:
        """Rows (samples, 1 + metrics)."""
        values = self.graph(dict(zip(self.fields, rows, strict=True)))
        flat = {name: value.flatten(1).sum(1) for name, value in values.items()}
        objective = sum(
            (term.scale * flat[term.layer] for term in self.plan.objective.terms), torch.zeros(len(rows[0]))
        )
        weights = self.graph.named_weights()
        for term in self.plan.objective.l2:
            for name in term.weights:
                objective = objective + 0.5 * term.scale * weights[name].square().sum()
        return torch.stack([cast("Tensor", objective), *(flat[metric.layer] for metric in self.plan.metrics)], dim=1)


def _role(plan: Plan, weights: PlannedWeights) -> str:
    layer = next(one.layer for one in plan.layers if one.name == weights.layer)
    if isinstance(layer, _NORMS):
        return "norm"
    if len(weights.shape) < 2:
        return "bias"
    if isinstance(layer, (Embedding, DistEmbedding)):
        return "embedding"
    return "convolution" if isinstance(layer, (Convolution, Deconvolution)) else "matrix"


def _column(place: int) -> Any:
    """The mean over samples of one number of a row."""

    def measured(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return output[:, place].sum(), torch.tensor(float(len(output)))

    return measured


def _task(model: Model, data: DataReader) -> StudyTask:
    readers = open_readers(data)
    if "train" not in readers:
        raise ConfigurationError(f"the data have the roles {', '.join(readers) or 'none'}; a study needs 'train'")
    plan = check(model, {name: field.shape for name, field in readers["train"].fields.items()})
    if own := [name for name, weights in plan.weights.items() if weights.trainable and weights.optimizer is not None]:
        raise ConfigurationError(
            f"weights {', '.join(own)} have optimizers of their own, and in a study the arms say by which rule weights "
            "are trained (roles.WHICH.optimizer): take them out of the model"
        )
    reads = {getattr(one.layer, "data_field", None) for one in plan.layers}
    fields = tuple(name for name in readers["train"].fields if name in reads)
    splits: dict[str, Any] = {_ROLES[role]: _rows(reader, fields) for role, reader in readers.items() if role in _ROLES}
    return StudyTask(
        model=lambda: _Graph(plan, fields),
        loss=_column(0),
        metrics={metric.name: _column(place) for place, metric in enumerate(plan.metrics, 1)},
        **splits,
    )


def _rows(reader: OpenReader, fields: tuple[str, ...]) -> tuple[Tensor, ...]:
    """All samples; a study expects a target last, and here the graph has read it, so that nothing follows."""
    read = reader.read(np.arange(len(reader), dtype=np.int64))
    return (*(torch.as_tensor(read[name]) for name in fields), torch.zeros(len(reader)))
