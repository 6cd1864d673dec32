"""A checked graph: every tensor's shape, every weights' start, and what was inserted. What `descend/lower` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import GraphError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph.enums import DataType
    from descend.graph.layer import Layer, Shape
    from descend.graph.metrics import BaseMetric
    from descend.graph.optimizers import Optimizer
    from descend.graph.weights import Initializer

__all__ = ["Plan", "PlannedL2", "PlannedLayer", "PlannedMetric", "PlannedObjective", "PlannedTerm", "PlannedWeights"]


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer with the shapes of its tensors.

    Attributes:
        layer: The description; its class is the kind.
        name: Its name.
        parents: Names of the layers whose outputs it takes, in order.
        parent_outputs: For each of them, which of its outputs; 0 for a layer that has one.
        input_shapes: Shapes of what comes in; for an Input the field's.
        output_shapes: Shapes of what goes out; several for Split and Slice alone.
        weights: Names of its weights, in the order of the kind's table.
        inserted: Whether it was put in by the check.
        formats: What its inputs and its outputs are brought to, where any layer of the graph asks for a format.
    """

    layer: Layer
    name: str
    parents: tuple[str, ...]
    parent_outputs: tuple[int, ...]
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    weights: tuple[str, ...]
    inserted: bool
    formats: tuple[DataType, DataType] | None = None

    @property
    def output_shape(self) -> Shape:
        """Shape of the first output."""
        return self.output_shapes[0]

    @property
    def kind(self) -> str:
        """What it is called: its class, or for a layer of operators these, from the first to the last."""
        ops = getattr(self.layer, "ops", ())
        return " ".join(type(op).__name__ for op in ops) or type(self.layer).__name__


@dataclass(frozen=True, slots=True)
class PlannedWeights:
    """A tensor of weights.

    Attributes:
        name: Its name, to which its state is bound.
        shape: Its shape.
        initializer: How it starts.
        fan_in: Inputs of one output, for the initializers that ask.
        fan_out: Outputs of one input.
        optimizer: Its own update rule, or None for the experiment's default.
        trainable: Whether it is updated: not running statistics, not frozen, not NoOptimizer.
        layer: Name of the first layer that uses it.
        column_major: Whether listed values (ValueInitializer) fill it column by column.
        datatype: Format of its numbers, or None.
        zero_columns: Of a matrix, the columns that start at zero, however the others do.
    """

    name: str
    shape: Shape
    initializer: Initializer
    fan_in: int
    fan_out: int
    optimizer: Optimizer | None
    trainable: bool
    layer: str
    column_major: bool
    datatype: DataType | None
    zero_columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedTerm:
    """`scale` times the mini-batch mean of `layer`; `evaluation` is the Evaluation layer that hands it over."""

    layer: str
    scale: float
    evaluation: str


@dataclass(frozen=True, slots=True)
class PlannedL2:
    """`scale` · Σ w² / 2 over the named weights."""

    weights: tuple[str, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class PlannedObjective:
    """The sum of these terms."""

    terms: tuple[PlannedTerm, ...]
    l2: tuple[PlannedL2, ...]


@dataclass(frozen=True, slots=True)
class PlannedMetric:
    """The mean over the samples of `layer`; the unit "%" multiplies it by 100."""

    name: str
    layer: str
    unit: str
    evaluation: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph that was found to be right.

    Attributes:
        name: The model's name.
        layers: Every parent before its children.
        weights: By name, in order of first use.
        objective: What is made small.
        metrics: Metrics of layers.
        other_metrics: Python and executable metrics, as described.
        notes: Lines to print: what was inserted, what is not used.
        batch_norm_group_size: Samples that share the statistics of batch normalization; 0 for the whole mini-batch.
    """

    name: str
    layers: tuple[PlannedLayer, ...]
    weights: Mapping[str, PlannedWeights]
    objective: PlannedObjective
    metrics: tuple[PlannedMetric, ...]
    other_metrics: tuple[BaseMetric, ...]
    notes: tuple[str, ...]
    batch_norm_group_size: int = 0

    def needed_for(self, outputs: Iterable[str]) -> tuple[PlannedLayer, ...]:
        """The layers that the outputs of these are computed from, and themselves, every parent before its children.

        Raises:
            GraphError: one of them is no layer.
        """
        known = {layer.name: layer for layer in self.layers}
        waiting = list(outputs)
        if unknown := [name for name in waiting if name not in known]:
            raise GraphError([f"there is no layer '{name}'{nearest(name, known)}" for name in unknown])
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += known[name].parents
        return tuple(layer for layer in self.layers if layer.name in needed)
