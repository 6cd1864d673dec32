"""Shape inference: the inputs and outputs of every node, from the fields of the readers on."""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.graph.checking.problems import listed, name_of
from descend.graph.kinds import Input, Slice
from descend.graph.layer import Incoming

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph.checking.nodes import LayerNode, NodeGraph
    from descend.graph.checking.problems import ProblemList
    from descend.graph.checking.weight_table import WeightTable
    from descend.graph.layer import Layer, Shape

__all__ = ["MAX_ENTRIES", "ShapeInference"]

MAX_ENTRIES = 10**12  # of an output for one sample: 4 TB in float32
_MAX_RANK = 5  # of the shapes that stand in for inputs that are not known
_STANDING_IN = (840, 1260)  # sizes that many numbers divide, so that groups and pieces fit
_UNKNOWN = "an input that is not known"


class ShapeInference:
    """Works out inputs, outputs and weights of nodes.

    Args:
        fields: Shape for each sample of every field that the readers offer.
        graph: The nodes and which of them are inserted.
        weights: Receives the weights of each layer once its inputs are known.
        problems: Receives what does not fit.
        pieces: Sizes of the arrays that a reader has joined to a field.
    """

    def __init__(
        self,
        fields: Mapping[str, Shape],
        graph: NodeGraph,
        weights: WeightTable,
        problems: ProblemList,
        pieces: Mapping[str, Shape] = MappingProxyType({}),
    ) -> None:
        self._fields, self._pieces = fields, pieces
        self._graph = graph
        self._weights = weights
        self._problems = problems

    def run(self, nodes: Iterable[LayerNode]) -> None:
        """Shapes and weights of all nodes: first of those that need no other layer's weights, then of the rest.

        Args:
            nodes: Each behind its parents.
        """
        nodes = self._behind_hints(list(nodes))
        borrowers = {node for node in nodes if node.layer.borrows_weights}
        waiting = set(borrowers)
        for node in nodes if borrowers else ():
            if not waiting.isdisjoint(node.parents):
                waiting.add(node)
        for sweep in (False, True) if borrowers else (False,):
            for node in nodes:
                if (node in waiting) is sweep:
                    self._infer(node)
                    self._weights.fill(node)

    def _behind_hints(self, nodes: list[LayerNode]) -> list[LayerNode]:
        """The same nodes, each also behind the layer whose dimensions it takes."""
        hints = {
            node: hint
            for node in nodes
            if _wants_hint(node.layer) and (hint := self._graph.node_of(node.layer.hint_layer)) is not None
        }
        if not hints:
            return nodes
        placed: dict[LayerNode, None] = {}
        waiting = nodes
        while waiting:
            left: list[LayerNode] = []
            for node in waiting:
                needed = [*node.parents, hints[node]] if node in hints else node.parents
                if all(one in placed for one in needed):
                    placed[node] = None
                else:
                    left.append(node)
            if len(left) == len(waiting):
                for node in (one for one in left if one in hints):
                    self._problems.add_to_layer(
                        node.layer, f"takes the dimensions of '{hints[node].layer.name}', which is computed from it"
                    )
                return [*placed, *left]
            waiting = left
        return list(placed)

    def _take_hint(self, node: LayerNode) -> None:
        """Give a layer without dimensions of its own those of its hint_layer, where they are known."""
        hint = self._graph.node_of(node.layer.hint_layer) if _wants_hint(node.layer) else None
        if hint is not None and hint.outputs is not None:
            node.layer = node.layer.sized_like(hint.outputs[0])

    def _infer(self, node: LayerNode) -> None:
        self._take_hint(node)
        if isinstance(node.layer, Slice) and node.layer.get_slice_points_from_reader:
            node.layer = node.layer.cut_like(self._pieces)
        layer = node.layer
        if layer.refusal is not None:
            self._problems.add(layer.where, f"layer '{layer.name}': kind {type(layer).__name__} {layer.refusal}")
            return
        if not self._count_fits(node):
            return
        inputs = self._inputs(node)
        if inputs is None:
            if node not in self._graph.inserted and layer.num_parents in (1, None):
                problems = _problems_for_any_input(layer, len(layer.parents), len(node.takers))
                self._problems.add_to_layer(layer, *problems)
            return
        try:
            node.outputs = layer.output_shapes(inputs, len(node.takers))
            node.inputs = inputs
            self._refuse_size(layer, node.outputs)
        except ConfigurationError as error:
            reader = self._graph.read_by(node)
            if reader is None:
                self._problems.add_to_layer(layer, *error.problems)
            else:
                where, what = reader
                self._problems.add(where, *(f"{what} {problem}" for problem in error.problems))

    def _inputs(self, node: LayerNode) -> tuple[Incoming, ...] | None:
        """The tensors that come into a node; None if one of them is not known."""
        layer = node.layer
        if isinstance(layer, Input):
            return self._field(layer)
        if layer.borrows_weights:
            return self._weights.borrow(node)
        if len(node.parents) == len(layer.parents) or node in self._graph.inserted:
            return _incoming(node)
        return None

    def _refuse_size(self, layer: Layer, outputs: tuple[Shape, ...]) -> None:
        """Report an output that exceeds any memory for one sample, whatever the mini-batch is."""
        entries = max(map(prod, outputs), default=0)
        if entries > MAX_ENTRIES:
            self._problems.add_to_layer(
                layer, f"gives {entries:,} numbers for each sample, more than any memory holds ({MAX_ENTRIES:,})"
            )

    def _count_fits(self, node: LayerNode) -> bool:
        layer = node.layer
        if node in self._graph.inserted:
            return True
        needed, given = layer.num_parents, len(layer.parents)
        if (needed is None and given) or needed == given:
            return True
        expected = "at least 1 parent" if needed is None else f"{needed or 'no'} parent{'' if needed == 1 else 's'}"
        has = f"{given}: {listed(map(name_of, layer.parents))}" if given else "none"
        self._problems.add_to_layer(layer, f"needs {expected} and has {has}")
        return False

    def _field(self, layer: Input) -> tuple[Incoming, ...] | None:
        name, fields = layer.data_field, self._fields
        if name in fields:
            return (Incoming(name, fields[name]),)
        near = self._problems.near(name, fields) or ";"
        problem = f"reads a field '{name}' that no reader offers{near}" if name else "has no data_field;"
        self._problems.add_to_layer(layer, f"{problem} the fields are {', '.join(fields) or 'none'}")
        return None


def _wants_hint(layer: Layer) -> bool:
    """Whether a layer has a hint_layer and no dimensions of its own."""
    if layer.hint_layer is None or not layer.sized_by:
        return False
    return getattr(layer, layer.sized_by) == getattr(type(layer), layer.sized_by)


def _incoming(node: LayerNode) -> tuple[Incoming, ...] | None:
    """What comes into a node, or None if a parent's output is not known."""
    found: list[Incoming] = []
    for parent, output in zip(node.parents, node.taken, strict=True):
        if parent.outputs is None:
            return None
        found.append(Incoming(parent.shown_name, parent.outputs[min(output, len(parent.outputs) - 1)]))
    return tuple(found)


def _problems_for_any_input(layer: Layer, parents: int, children: int) -> list[str]:
    """What is wrong with a layer whatever its input is, for one behind a layer that does not fit.

    These are the problems that inputs of all ranks and of two sizes have in common and that do not name the inputs.
    """
    found: list[set[str]] = []
    for size in _STANDING_IN:
        problems: set[str] = set()
        for rank in range(1, _MAX_RANK + 1):
            inputs = (Incoming(_UNKNOWN, (size,) * rank),) * parents
            try:
                layer.output_shapes(inputs, children)
            except ConfigurationError as error:
                problems.update(problem for problem in error.problems if _UNKNOWN not in problem)
            else:
                return []
        found.append(problems)
    return sorted(set.intersection(*found))
