"""Walks over the graph of layers. None of them recurses, so a chain of any length will do."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from descend.graph.kinds import Dummy, Evaluation, OperatorLayer, Split, losses
from descend.graph.kinds import operators as ops
from descend.graph.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from descend.graph.plan import Plan, PlannedLayer

__all__ = ["cycles", "parents_of", "prediction_outputs", "reached", "topological", "traverse_layer_graph"]


def parents_of(layer: Layer) -> Iterator[Layer]:
    """The parents that exist; a text may also name some that do not."""
    return (parent for parent in layer.parents if isinstance(parent, Layer))


def reached(layers: Iterable[Layer]) -> list[Layer]:
    """All layers connected with the given ones, in order of creation."""
    found: dict[int, Layer] = {}
    waiting = list(layers)
    while waiting:
        layer = waiting.pop()
        if layer.serial in found:
            continue
        found[layer.serial] = layer
        waiting += [
            near for near in (*layer.parents, *layer.children) if isinstance(near, Layer) and near.serial not in found
        ]
    return [found[serial] for serial in sorted(found)]


def topological(layers: Iterable[Layer]) -> tuple[list[Layer], list[Layer]]:
    """Layers with every parent before its children, in order of creation where that leaves a choice.

    Returns:
        The ordered layers, and those that lie on a cycle or behind one.
    """
    chosen = {layer.serial: layer for layer in layers}
    waiting = {serial: sum(parent.serial in chosen for parent in parents_of(layer)) for serial, layer in chosen.items()}
    ready = [serial for serial, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    children = _children(chosen)
    ordered: list[Layer] = []
    while ready:
        serial = heapq.heappop(ready)
        ordered.append(chosen[serial])
        for child in children.get(serial, ()):
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, child)
    return ordered, [chosen[serial] for serial in sorted(serial for serial, count in waiting.items() if count)]


def _children(chosen: dict[int, Layer]) -> dict[int, list[int]]:
    """By serial, the children as the parents' lists have them, which are the truth of the graph."""
    children: dict[int, list[int]] = {}
    for serial, layer in chosen.items():
        for parent in parents_of(layer):
            if parent.serial in chosen:
                children.setdefault(parent.serial, []).append(serial)
    return children


def traverse_layer_graph(layers: Layer | Iterable[Layer]) -> Iterator[Layer]:
    """All layers connected with the given ones, every parent before its children."""
    ordered, rest = topological(reached([layers] if isinstance(layers, Layer) else layers))
    yield from ordered
    yield from rest


def cycles(layers: Iterable[Layer]) -> list[list[Layer]]:
    """One cycle of each knot of layers, in the direction of the data, its first layer given again at its end.

    Args:
        layers: Those on cycles or behind them, as `topological` returns them.
    """
    rest = {layer.serial: layer for layer in layers}
    found: list[list[Layer]] = []
    done: set[int] = set()
    for serial in sorted(rest):
        # Every layer here has a parent among these, so walking up must come to a cycle, or to one found before.
        path: dict[int, int] = {}
        at = serial
        while at not in done and at not in path:
            path[at] = len(path)
            at = next(parent.serial for parent in parents_of(rest[at]) if parent.serial in rest)
        if at in path:
            walk = list(path)[path[at] :]
            first = walk.index(min(walk))
            up = [*walk[first:], *walk[:first], walk[first]]
            found.append([rest[one] for one in reversed(up)])
        done |= path.keys()
    return found


# ---- which layers a model is used for once it is trained

_LOSSES = tuple(getattr(losses, name) for name in losses.__all__)
_LOSS_OPERATORS = (ops.BinaryCrossEntropy, ops.SigmoidBinaryCrossEntropy, ops.SquaredDifference)


def prediction_outputs(plan: Plan) -> tuple[str, ...]:
    """The layers that the terms of the objective compare with a label: the first parents of its losses.

    A term that is not a loss, and has none above it in the line of first parents, is a prediction itself. Where there
    is no objective, the layers without children are.
    """
    known = {layer.name: layer for layer in plan.layers}
    if not plan.objective.terms:
        ends = (layer.parents[0] for layer in plan.layers if layer.inserted and isinstance(layer.layer, Dummy))
        return tuple(dict.fromkeys(_source(known, name) for name in ends))
    return tuple(dict.fromkeys(_prediction(known, known[term.layer]) for term in plan.objective.terms))


def _prediction(known: dict[str, PlannedLayer], top: PlannedLayer) -> str:
    at, found = top, None
    while at.parents:
        if _is_loss(at):
            found = at.parents[0]
        elif not (found is None or isinstance(at.layer, (Split, Evaluation))):
            break
        at = known[at.parents[0]]
    return _source(known, found or top.name)


def _is_loss(planned: PlannedLayer) -> bool:
    layer = planned.layer
    return isinstance(layer, _LOSSES) or (
        isinstance(layer, OperatorLayer) and any(isinstance(op, _LOSS_OPERATORS) for op in layer.ops)
    )


def _source(known: dict[str, PlannedLayer], name: str) -> str:
    """The layer that a person gave, behind those that the check put in."""
    while known[name].inserted:
        name = known[name].parents[0]
    return name
