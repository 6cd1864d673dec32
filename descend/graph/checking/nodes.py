"""The graph of a plan while it is made: a node for each layer, and for each layer that the check inserts.

Evaluation    behind a layer that the objective or a metric reads
Dummy         behind an output that no layer reads
Split         behind an output that several layers read
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from descend.arguments.leniency import Deviation
from descend.arguments.parameter_filter import ParameterInfo, matches
from descend.errors import nearest
from descend.graph.checking.problems import listed, name_of
from descend.graph.kinds import Dummy, Evaluation, Split
from descend.graph.layer import Layer
from descend.graph.metrics import Metric
from descend.graph.order import parents_of
from descend.graph.plan import PlannedL2, PlannedMetric, PlannedObjective, PlannedTerm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from descend.graph.checking.problems import ProblemList
    from descend.graph.checking.weight_table import WeightTable
    from descend.graph.layer import Incoming, Shape
    from descend.graph.model import Model
    from descend.graph.objective import L2WeightRegularization, LayerTerm, ObjectiveFunction

__all__ = ["LayerNode", "NodeGraph", "planned_metrics", "planned_objective"]


class LayerNode:
    """A layer of the plan while it is made."""

    __slots__ = ("inputs", "layer", "outputs", "parents", "taken", "takers", "weights")

    def __init__(self, layer: Layer, parents: list[LayerNode], taken: list[int]) -> None:
        self.layer = layer
        self.parents = parents
        self.taken = taken  # which output of each parent it reads
        self.takers: list[tuple[LayerNode, int]] = []  # nodes that read an output, and as which of their parents
        self.inputs: tuple[Incoming, ...] | None = None  # None until they are known
        self.outputs: tuple[Shape, ...] | None = None
        self.weights: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name of the layer that the user knows: for an inserted Split, of the layer before it."""
        inserted_split = isinstance(self.layer, Split) and not self.layer.parents and bool(self.parents)
        return self.parents[0].layer.name if inserted_split else self.layer.name


class NodeGraph:
    """The nodes of a model's layers and of those that are inserted between them.

    Args:
        layers: The model's layers.
        problems: Receives what is wrong.

    Attributes:
        names: The first layer of each name, the inserted ones included.
        inserted: Nodes of layers that the model does not have.
    """

    def __init__(self, layers: Iterable[Layer], problems: ProblemList) -> None:
        self.names = {layer.name: layer for layer in reversed(list(layers))}
        self.inserted: set[LayerNode] = set()
        self._problems = problems
        self._nodes: dict[int, LayerNode] = {}  # by the layer's serial number
        self._evaluations: dict[int, LayerNode] = {}  # by id of the term or metric that reads it
        self._read_by: dict[LayerNode, tuple[str | None, str]] = {}  # for an inserted Evaluation: place and description

    def add_layers(self, ordered: Iterable[Layer]) -> None:
        """A node for each layer, with its parents' nodes, but for parents that are missing or on a cycle.

        Args:
            ordered: Layers, each behind its parents.
        """
        ordered = list(ordered)
        positions = {layer.serial: _positions(layer) for layer in ordered if layer.num_children is None}
        for layer in ordered:
            above = [self._nodes[parent.serial] for parent in parents_of(layer) if parent.serial in self._nodes]
            taken = [_next_position(positions.get(node.layer.serial), layer) for node in above]
            node = LayerNode(layer, above, taken)
            self._nodes[layer.serial] = node
            for index, parent in enumerate(above):
                parent.takers.append((node, index))
            if layer.num_children == 0 and layer.children:
                self._problems.add_to_layer(
                    layer, f"takes no children and has {listed(name_of(child) for child in layer.children)}"
                )

    def add_readers(self, model: Model) -> None:
        """Give each objective term and each metric the node that it reads, behind an Evaluation of its own."""
        objective = model.objective_function
        for term in objective.layer_terms if objective else ():
            self._evaluate(term, "an objective term")
        for metric in model.metrics:
            if isinstance(metric, Metric):
                self._evaluate(metric, f"metric '{metric.name}'")

    def node_of(self, layer: Layer | str | None) -> LayerNode | None:
        """The node of a layer; None for none, for a name that no layer has, and for a layer on a cycle."""
        return self._nodes.get(layer.serial) if isinstance(layer, Layer) else None

    def evaluation(self, reader: LayerTerm | Metric) -> LayerNode | None:
        """The Evaluation that an objective term or a metric reads; None if its layer is missing or on a cycle."""
        return self._evaluations.get(id(reader))

    def read_by(self, node: LayerNode) -> tuple[str | None, str] | None:
        """For an inserted Evaluation, the place and the description of the term or metric that needs it."""
        return self._read_by.get(node)

    def placed(self) -> list[LayerNode]:
        """All nodes in order, each followed by what is inserted behind it: Split, Evaluation or Dummy."""
        placed: list[LayerNode] = []
        for node in list(self._nodes.values()):
            placed.append(node)
            if not node.takers and node.layer.num_children != 0:
                self._insert(Dummy, f"{node.layer.name}_dummy", node)
            last = node
            if len(node.takers) > 1 and node.layer.num_children == 1:
                last = self._split(node)
                placed.append(last)
            placed += [taker for taker, _ in last.takers if taker in self.inserted]
        return placed

    def notes(self) -> list[str]:
        """A sentence for each kind of layer that was inserted."""
        found: list[str] = []
        for kind, reason in (
            (Evaluation, "to be read"),
            (Split, "behind outputs with several takers"),
            (Dummy, "after outputs without a child"),
        ):
            names = sorted(node.layer.name for node in self.inserted if isinstance(node.layer, kind))
            if names:
                found.append(f"inserted {kind.__name__} {listed(names)}, {reason}")
        return found

    def _evaluate(self, reader: LayerTerm | Metric, what: str) -> None:
        layer = reader.layer
        if isinstance(layer, str):
            near = self._problems.near(layer, self.names)
            self._problems.add(reader.where, f"{what} names a layer '{layer}' that does not exist{near}")
            return
        node = self._nodes.get(layer.serial)
        if node is None:  # on a cycle, which is reported
            return
        if isinstance(layer, Evaluation):
            self._evaluations[id(reader)] = node
            return
        evaluation = self._insert(Evaluation, f"{layer.name}_eval", node)
        self._evaluations[id(reader)] = evaluation
        self._read_by[evaluation] = (reader.where, what)

    def _insert(self, kind: type[Layer], name: str, parent: LayerNode) -> LayerNode:
        unique = next(candidate for candidate in _numbered(name) if candidate not in self.names)
        layer = kind(name=unique)
        self.names[unique] = layer
        node = LayerNode(layer, [parent], [len(parent.takers) if parent.layer.num_children is None else 0])
        parent.takers.append((node, 0))
        self.inserted.add(node)
        return node

    def _split(self, node: LayerNode) -> LayerNode:
        takers, node.takers = node.takers, []
        split = self._insert(Split, f"{node.layer.name}_split", node)
        split.takers = takers
        for output, (taker, index) in enumerate(takers):
            taker.parents[index] = split
            taker.taken[index] = output
        return split


def _positions(layer: Layer) -> dict[int, deque[int]]:
    """For each child of a layer with several outputs, which it takes; one that is listed twice takes two."""
    found: dict[int, deque[int]] = defaultdict(deque)
    for position, child in enumerate(layer.children):
        if isinstance(child, Layer):
            found[child.serial].append(position)
    return found


def _next_position(positions: dict[int, deque[int]] | None, child: Layer) -> int:
    if positions is None or not positions.get(child.serial):
        return 0
    return positions[child.serial].popleft()


def _numbered(name: str) -> Iterable[str]:
    yield name
    number = 2
    while True:
        yield f"{name}{number}"
        number += 1


# ---- the objective and the metrics of a plan: which nodes are read, and which weights are regularized


def planned_objective(
    objective: ObjectiveFunction | None, graph: NodeGraph, weights: WeightTable, problems: ProblemList
) -> PlannedObjective:
    """The terms with the nodes that they read, and the L2 terms with their weights."""
    if objective is None:
        return PlannedObjective((), ())
    for term in objective.terms:
        if not math.isfinite(term.scale):
            problems.add(term.where, f"an objective term has scale_factor {term.scale!r}; expected a finite number")
        elif term.scale == 0:
            problem = f"the objective term {term!r} has scale_factor 0, as one that is not set has"
            if problems.refuses(Deviation.ZERO_SCALE, term.where, problem):
                problems.add(term.where, f"{problem}: write scale_factor: 1, or take the term out")
    read = [(term, graph.evaluation(term)) for term in objective.layer_terms]
    return PlannedObjective(
        terms=tuple(PlannedTerm(name_of(term.layer), term.scale, node.layer.name) for term, node in read if node),
        l2=tuple(PlannedL2(_regularized(term, weights, problems), term.scale) for term in objective.l2_terms),
    )


def planned_metrics(model: Model, graph: NodeGraph) -> tuple[PlannedMetric, ...]:
    """The metrics that read a layer, each with its node; of several with one name the later ones have a number."""
    read = [(metric, graph.evaluation(metric)) for metric in model.metrics if isinstance(metric, Metric)]
    names = numbered([metric.name for metric, _ in read])
    return tuple(
        PlannedMetric(name, name_of(metric.layer), metric.unit, node.layer.name)
        for name, (metric, node) in zip(names, read, strict=True)
        if node
    )


def numbered(names: Sequence[str]) -> list[str]:
    """Names of which none is there twice: "loss", "loss (2)", "loss (3)"."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _regularized(term: L2WeightRegularization, table: WeightTable, problems: ProblemList) -> tuple[str, ...]:
    """Names of the weights of an L2 term, without those that it excludes."""
    planned = table.planned
    names = tuple(map(name_of, term.weights)) or tuple(name for name, one in planned.items() if one.trainable)
    chosen = [
        ParameterInfo(name, len(planned[name].shape), name in table.biases, name in table.norms)
        for name in names
        if term.exclude and name in planned
    ]
    for rule in term.exclude if chosen else ():
        if not any(matches(rule, one) for one in chosen):
            near = nearest(rule, ["bias", "norm", *names])
            problems.add(term.where, f"the regularization leaves out '{rule}', which none of its weights is{near}")
    for name in names:
        if name not in planned and not problems:  # a layer that does not fit has made no weights yet
            near = problems.near(name, planned)
            problems.add(term.where, f"the regularization names weights '{name}' that no layer uses{near}")
    left_out = {one.name for one in chosen if any(matches(rule, one) for rule in term.exclude)}
    return tuple(name for name in names if name not in left_out)
