"""Draws a checked graph as an SVG file, from top to bottom.

    rows        a layer is one row below the lowest of its parents; one without parents is above its children
    order       layers of a row are sorted by the mean position of their neighbours, downwards and upwards, a few times
    positions   the ideal position of a layer is the mean of its neighbours; a row has the positions nearest to these,
                in least squares, at which boxes do not overlap
    edges       go down, through a gap in each row that they pass
    groups      layers with a common prefix of their names share a background

Layers inserted by the check are not drawn; edges connect the layers around them.

Source: Sugiyama, Tagawa and Toda 1981, Methods for Visual Understanding of Hierarchical System Structures.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from descend.errors import StorageError, Unsupported
from descend.pages import svg
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from descend.graph import Plan, PlannedLayer

__all__ = ["MAX_LAYERS", "picture", "save"]

MAX_LAYERS = 5_000  # a larger picture cannot be read and takes long
_MAX_PASSES = 200_000  # gaps for long edges
_CHARACTER, _BOX, _ROW, _GAP, _MARGIN = 6.7, 36, 62, 22, 24  # pixels; of a character of the font at 11 pixels
_THREAD = 8  # width of a gap for an edge
_SWEEPS = 12
_GROUP = 4  # fewest layers of a group

_COLOURS = {
    "inputs": "#d9dee7",
    "sources": "#d9dee7",
    "learning": "#a9c8f5",
    "recurrent": "#a9c8f5",
    "tables": "#a9c8f5",
    "mathematics": "#a9c8f5",
    "normalization": "#b5e3d3",
    "activations": "#f7dfa5",
    "operators": "#f3e9d2",
    "losses": "#f2b8b5",
    "regularization": "#e3d3f0",
}
_OTHER = "#eceff4"


@dataclass
class _Box:
    """A layer, or the gap through which an edge passes a row."""

    row: int
    width: float
    layer: PlannedLayer | None = None
    above: list[_Box] = field(default_factory=list["_Box"])
    below: list[_Box] = field(default_factory=list["_Box"])
    x: float = 0.0  # of its middle

    @property
    def top(self) -> float:
        return _MARGIN + self.row * _ROW


def picture(plan: Plan) -> str:
    """The picture as SVG.

    Raises:
        Unsupported: the graph has more layers than a picture can show.
    """
    shown = [layer for layer in plan.layers if not layer.inserted]
    if len(shown) > MAX_LAYERS:
        raise Unsupported(
            f"the model has {len(shown):,} layers, and a picture of more than {MAX_LAYERS:,} is not drawn"
        )
    edges = _edges(plan)
    boxes = _boxes(shown, edges)
    paths = [_path(boxes[parent], boxes[child]) for parent, child in edges]
    if sum(map(len, paths)) > _MAX_PASSES:
        raise Unsupported(f"the edges of the model pass more than {_MAX_PASSES:,} rows, which no picture can show")
    rows = _rows([*boxes.values(), *(box for path in paths for box in path[1:-1])])
    _sort(rows)
    _place(rows)
    return _svg(plan.name, list(boxes.values()), paths)


def save(plan: Plan, path: Path) -> None:
    """Write the picture to a file.

    Raises:
        Unsupported: as `picture`.
        StorageError: the file cannot be written.
    """
    text = picture(plan)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from None


def _edges(plan: Plan) -> list[tuple[str, str]]:
    """Parent and child of each edge, without inserted layers."""
    known = {layer.name: layer for layer in plan.layers}

    def source(name: str) -> str:
        while known[name].inserted:
            name = known[name].parents[0]
        return name

    return [(source(parent), layer.name) for layer in plan.layers if not layer.inserted for parent in layer.parents]


def _boxes(shown: Sequence[PlannedLayer], edges: Iterable[tuple[str, str]]) -> dict[str, _Box]:
    """A box for each layer, in its row."""
    parents: dict[str, list[str]] = defaultdict(list)
    children: dict[str, list[str]] = defaultdict(list)
    for parent, child in edges:
        parents[child].append(parent)
        children[parent].append(child)
    row: dict[str, int] = {}
    for layer in shown:
        row[layer.name] = max((row[parent] + 1 for parent in parents[layer.name]), default=0)
    for layer in reversed(shown):
        if not parents[layer.name] and children[layer.name]:
            row[layer.name] = max(0, min(row[child] for child in children[layer.name]) - 1)
    return {layer.name: _Box(row[layer.name], _width(layer), layer) for layer in shown}


def _width(layer: PlannedLayer) -> float:
    return max(map(len, _lines(layer))) * _CHARACTER + 16


def _lines(layer: PlannedLayer) -> tuple[str, str]:
    shape = ", ".join("×".join(map(str, one)) for one in dict.fromkeys(layer.output_shapes))
    return printable(layer.name), printable(f"{layer.kind}  {shape}")


def _path(parent: _Box, child: _Box) -> list[_Box]:
    """The boxes of an edge: its ends, and a gap in each row between them."""
    path = [parent, *(_Box(row, _THREAD) for row in range(parent.row + 1, child.row)), child]
    for upper, lower in pairwise(path):
        upper.below.append(lower)
        lower.above.append(upper)
    return path


def _rows(boxes: Iterable[_Box]) -> list[list[_Box]]:
    rows: dict[int, list[_Box]] = defaultdict(list)
    for box in boxes:
        rows[box.row].append(box)
    return [rows[i] for i in sorted(rows)]


def _sort(rows: list[list[_Box]]) -> None:
    """Sort the boxes of each row for few crossings."""
    place = {id(box): float(i) for row in rows for i, box in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            middles = [_middle(box, box.above if down else box.below, place) for box in row]
            row[:] = [box for _, box in sorted(zip(middles, row, strict=True), key=lambda pair: pair[0])]
            place.update({id(box): float(i) for i, box in enumerate(row)})


def _middle(box: _Box, nears: Sequence[_Box], place: Mapping[int, float]) -> float:
    """The mean position of a box's neighbours; its own if it has none."""
    return fmean(place[id(near)] for near in nears) if nears else place[id(box)]


def _place(rows: list[list[_Box]]) -> None:
    """Move each box as near to its ideal position as the other boxes of its row allow."""
    for row in rows:
        _spread(row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            ideals: list[float] = []
            for box in row:
                nears = (box.above or box.below) if down else (box.below or box.above)
                ideals.append(fmean(near.x for near in nears) if nears else box.x)
            _spread(row, ideals)
    left = min(box.x - box.width / 2 for row in rows for box in row)
    for row in rows:
        for box in row:
            box.x += _MARGIN - left


def _spread(row: list[_Box], ideals: list[float]) -> None:
    """Set the positions nearest to the ideal ones, in least squares, that keep order and distances.

    Measured from the smallest possible positions this is isotonic regression, solved by pooling adjacent violators.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        gap = _GAP if left.layer and right.layer else _THREAD
        offsets.append(offsets[-1] + left.width / 2 + gap + right.width / 2)
    pools: list[tuple[float, int]] = []  # sum of ideal positions, number of boxes
    for ideal, offset in zip(ideals, offsets, strict=True):
        total, count = ideal - offset, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            above, number = pools.pop()
            total, count = total + above, count + number
        pools.append((total, count))
    places = [total / count for total, count in pools for _ in range(count)]
    for box, place, offset in zip(row, places, offsets, strict=True):
        box.x = place + offset


def _groups(boxes: Sequence[_Box]) -> list[tuple[str, list[_Box]]]:
    """Groups of boxes with a common prefix, each box in its smallest group, with no other box in between."""
    parts = {id(box): re.split(r"(?<=[_/.])", box.layer.name) for box in boxes if box.layer}
    starts = Counter("".join(words[:i]) for words in parts.values() for i in range(1, len(words)))
    members: dict[str, list[_Box]] = defaultdict(list)
    for box in boxes:
        words = parts[id(box)]
        fitting = ("".join(words[:i]) for i in range(len(words) - 1, 0, -1))
        start = next((one for one in fitting if _GROUP <= starts[one] <= len(boxes) / 2), None)
        if start is not None:
            members[start].append(box)
    return [(start.rstrip("_/."), group) for start, group in members.items() if _undisturbed(group, boxes)]


def _bounds(group: Sequence[_Box]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the background of a group."""
    left, right = min(b.x - b.width / 2 for b in group), max(b.x + b.width / 2 for b in group)
    return left - 8, min(b.top for b in group) - 15, right + 8, max(b.top for b in group) + _BOX + 5


def _undisturbed(group: Sequence[_Box], boxes: Iterable[_Box]) -> bool:
    left, top, right, bottom = _bounds(group)
    own = set(map(id, group))
    return len(group) > 1 and not any(
        b.x + b.width / 2 > left and b.x - b.width / 2 < right and b.top + _BOX > top and b.top < bottom
        for b in boxes
        if id(b) not in own
    )


def _svg(name: str, boxes: Sequence[_Box], paths: Iterable[list[_Box]]) -> str:
    groups = _groups(boxes)
    width = max([b.x + b.width / 2 for b in boxes] + [b.x for path in paths for b in path], default=0) + _MARGIN
    height = max((b.top for b in boxes), default=0) + _BOX + _MARGIN
    attributes = {
        "xmlns": svg.NAMESPACE,
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "viewBox": f"0 0 {width:.0f} {height:.0f}",
        "font-family": "ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace",
        "font-size": 11,
    }
    parts = [
        f"<title>{svg.text(name)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *(_ground(start, group) for start, group in groups),
        *(_edge(path) for path in paths),
        *(_drawn(box, box.layer) for box in boxes if box.layer),
    ]
    return svg.document(attributes, parts, "\n") + "\n"


def _ground(start: str, group: Sequence[_Box]) -> str:
    left, top, right, bottom = _bounds(group)
    return (
        f'<g class="group"><rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
        f'rx="8" fill="#f6f7f9" stroke="#d5d9e0"/><text x="{left + 6:.1f}" y="{top + 10:.1f}" font-size="9" '
        f'fill="#6b7280">{svg.text(start)}</text></g>'
    )


def _edge(path: Sequence[_Box]) -> str:
    """A line from the bottom of a box to the top of another, vertical in the rows that it passes."""
    first, *passed, last = path
    at = f"M{first.x:.1f},{first.top + _BOX:.1f}"
    x, y = first.x, first.top + _BOX
    for box in passed:
        at += _bend(x, y, box.x, box.top) + f"V{box.top + _BOX:.1f}"
        x, y = box.x, box.top + _BOX
    at += _bend(x, y, last.x, last.top)
    names = f"data-from={svg.attribute(_named(first))} data-to={svg.attribute(_named(last))}"
    return f'<path class="edge" {names} d="{at}" fill="none" stroke="#64748b" stroke-width="1.2"/>'


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    if abs(x - to_x) < 0.05:
        return f"V{to_y:.1f}"
    middle = (y + to_y) / 2
    return f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}"


def _named(box: _Box) -> str:
    return printable(box.layer.name) if box.layer else ""


def _drawn(box: _Box, layer: PlannedLayer) -> str:
    head, foot = _lines(layer)
    left = box.x - box.width / 2
    family = type(layer.layer).__module__.rpartition(".")[2].removesuffix("_layers")
    colour = _COLOURS.get("operators" if family == "operator" else family, _OTHER)
    return (
        f'<g class="layer" data-name={svg.attribute(layer.name)}>'
        f'<rect x="{left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{_BOX}" rx="5" fill="{colour}" '
        f'stroke="#475569"/>'
        f'<text x="{box.x:.1f}" y="{box.top + 15:.1f}" text-anchor="middle" font-weight="bold">{svg.text(head)}</text>'
        f'<text x="{box.x:.1f}" y="{box.top + 29:.1f}" text-anchor="middle" fill="#334155">{svg.text(foot)}</text></g>'
    )
