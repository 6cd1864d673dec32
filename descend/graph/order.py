"""Walks over the graph of layers. None of them recurses, so a chain of any length will do."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from descend.graph.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["cycles", "parents_of", "reached", "topological", "traverse_layer_graph"]


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
