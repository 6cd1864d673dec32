"""A chart as a value, and its Vega-Lite specification: series of points, lines, bands and intervals on two axes.

Series differ by shape or dash as well as by colour, so that a print in grey can be read. Text and axes have the colour
of the page around them (`currentColor`), which makes one picture serve light and dark pages. A specification is plain
JSON, complete with its data: https://vega.github.io/editor draws it, and so does `descend.pages.draw`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LARGEST", "Axis", "Chart", "Line", "vega_lite"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
LARGEST = 1e300  # that is drawn: the distance of two numbers up to here is one, too, also for Vega
WIDTH, HEIGHT = 380, 210  # pixels: all of the picture; within the axes. On wide pages it is enlarged

# A contrast of at least 3:1 on #ffffff and on #15181d, which WCAG 2.2 asks of graphics (success criterion 1.4.11).
COLOURS = ("#1f77c9", "#d55e00", "#0a8f68", "#b05fc0", "#a87400", "#0b8ba3", "#c8447c", "#7d7d7d")
_GUIDE = "#7d7d7d"
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
_SOLID, _GUIDE_DASH = [1, 0], [4, 4]
_DASHES = (_SOLID, [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 4], [2, 4], [6, 2, 2, 2, 2, 2])
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
_STROKE = "stroke"  # Vega's name of a short line as the symbol of a legend
_INK, _FONT = "currentColor", "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: What it shows, with its unit.
        log: Whether it is logarithmic.
        names: Of the values 0, 1, ..., where it has no numbers.
        limits: The values that are shown; None for all. Points outside are drawn as triangles at the edge.
    """

    label: str
    log: bool = False
    names: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None

    def shows(self, value: float) -> bool:
        """Whether a value has a place on it."""
        return abs(value) <= LARGEST and (value >= 1 / LARGEST or not self.log)


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        name: In the legend; "" for a single series that needs none.
        points: (x, y); what is not finite, or beyond `LARGEST`, is left out.
        band: (x, low, high) around it.
        joined: Whether points are joined.
        marked: Whether points are drawn.
        dashed: For guides and fits.
        failed: x of those without a value, drawn as crosses at an edge.
        failed_on_top: At which edge.
        shades: How full each point is, 0 to 1.
        notes: What each point says beside its numbers.
        bars: (x, low, middle, high) of upright intervals.
        colour: Number of the colour; -1 is grey; None takes the next one.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = field(default=())
    joined: bool = True
    marked: bool = True
    dashed: bool = False
    failed: tuple[float, ...] = field(default=())
    failed_on_top: bool = False
    shades: tuple[float, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    bars: tuple[tuple[float, float, float, float], ...] = field(default=())
    colour: int | None = None


@dataclass(frozen=True)
class Chart:
    """Series on two axes."""

    lines: tuple[Line, ...]
    x: Axis
    y: Axis

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(self.x.shows(a) and self.y.shows(b) for line in self.lines for a, b in line.points)


def vega_lite(chart: Chart) -> dict[str, Any]:
    """The specification of a chart, with its data; the same one for the same chart."""
    series = list(_series(chart))
    scatter = any(not one.line.joined or len(one.line.points) == 1 for one in series)
    layers = [layer for one in series for layer in _under(chart, one)]
    layers += [layer for one in series for layer in _over(chart, one, scatter)]
    axes = {"x": _axis(chart.x, _extent(chart, 0)), "y": _axis(chart.y, _extent(chart, 1))}
    for layer in layers:
        own = layer["encoding"]
        layer["encoding"] = {name: {**axes.get(name, {}), **value} for name, value in own.items()}
    look = _look(series, scatter)
    return {
        "$schema": SCHEMA,
        "width": WIDTH,
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "padding": 4,
        "config": _CONFIG,
        "encoding": look,
        "layer": layers,
    }


@dataclass(frozen=True)
class _Drawn:
    """A series with the look that it was given."""

    line: Line
    name: str
    colour: str
    dash: list[int]
    shape: str


def _series(chart: Chart) -> Iterator[_Drawn]:
    taken: set[str] = set()
    for number, line in enumerate(chart.lines):
        name = printable(line.name)
        while name in taken:
            name += " "
        taken.add(name)
        chosen = number if line.colour is None else line.colour
        colour = _GUIDE if chosen < 0 else COLOURS[chosen % len(COLOURS)]
        dash = _GUIDE_DASH if line.dashed or chosen < 0 else _DASHES[chosen % len(_DASHES)]
        yield _Drawn(line, name, colour, dash, _SHAPES[max(chosen, 0) % len(_SHAPES)])


def _look(series: Sequence[_Drawn], scatter: bool) -> dict[str, Any]:
    """How series differ: colour and shape where points lie alone, else colour and dash, in one legend."""
    legend = None
    if any(one.line.name for one in series):
        legend = {
            "title": None,
            "orient": "bottom",
            "direction": "horizontal",
            "columns": 1 if max(len(one.name) for one in series) > 24 else 2,
            "symbolOpacity": 1,
            "symbolStrokeWidth": 2,
            "labelLimit": 300,
            **({"symbolSize": 110} if scatter else {"symbolType": _STROKE, "symbolSize": 500}),
        }

    def channel(values: Iterable[Any], shown: Any = legend) -> dict[str, Any]:
        scale = {"domain": [one.name for one in series], "range": list(values)}
        return {"field": "series", "type": "nominal", "scale": scale, "legend": shown}

    look = {"color": channel(one.colour for one in series)}
    if scatter:
        look["shape"] = channel(_STROKE if _is_line(one.line) else one.shape for one in series)
        look["strokeDash"] = channel((one.dash if _is_line(one.line) else _SOLID for one in series), None)
    else:
        look["strokeDash"] = channel(one.dash for one in series)
    return look


def _is_line(line: Line) -> bool:
    return line.joined and len(line.points) != 1


def _under(chart: Chart, one: _Drawn) -> Iterator[dict[str, Any]]:
    """Band and line of a series."""
    line, x, y = one.line, chart.x, chart.y
    band = [(a, low, high) for a, low, high in line.band if x.shows(a) and y.shows(low) and y.shows(high)]
    if len(band) > 1:
        rows = [{"x": a, "y": low, "high": high} for a, low, high in band]
        mark = {"type": "area", "opacity": 0.16, "line": False, "point": False, "strokeWidth": 0}
        yield _layer(one, mark, rows, x={"field": "x"}, y={"field": "y"}, y2={"field": "high"})
    points = [(a, b) for a, b in line.points if x.shows(a) and y.shows(b)]
    if line.joined and len(points) > 1:
        rows = [{"x": a, "y": b} for a, b in points]
        mark = {"type": "line", "strokeWidth": 1.8, "point": False}
        yield _layer(one, mark, rows, x={"field": "x"}, y={"field": "y"})


def _over(chart: Chart, one: _Drawn, scatter: bool) -> Iterator[dict[str, Any]]:
    """Points, intervals and failures of a series."""
    line, x, y = one.line, chart.x, chart.y
    if line.marked:
        yield from _marks(chart, one, scatter)
    bars = [row for row in line.bars if x.shows(row[0]) and all(map(y.shows, row[1:]))]
    if bars:
        rows = [{"x": a, "y": low, "high": high} for a, low, _, high in bars]
        mark = {"type": "rule", "strokeWidth": 2.2, "strokeDash": _SOLID}
        yield _layer(one, mark, rows, x={"field": "x"}, y={"field": "y"}, y2={"field": "high"})
        rows = [{"x": a, "y": middle} for a, _, middle, _ in bars]
        mark = {"type": "point", "shape": _STROKE, "size": 160, "strokeWidth": 2.2}
        yield _layer(one, mark, rows, x={"field": "x"}, y={"field": "y"}, shape={"value": _STROKE})
    failed = [a for a in line.failed if x.shows(a)]
    if failed:
        said = [f"{one.name}: {printable(x.label)} {a:.5g}, failed" for a in failed]
        edge = 5 if line.failed_on_top else HEIGHT - 5
        yield _at_edge(one, _CROSS, failed, said, edge, filled=False)


def _marks(chart: Chart, one: _Drawn, scatter: bool) -> Iterator[dict[str, Any]]:
    line, x, y = one.line, chart.x, chart.y
    low, high = y.limits or (-math.inf, math.inf)
    rows: list[dict[str, Any]] = []
    beyond: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
    for number, (a, b) in enumerate(line.points):
        if not (x.shows(a) and y.shows(b)):
            continue
        note = f", {printable(line.notes[number])}" if line.notes else ""
        head = f"{one.name}: " if one.line.name else ""
        said = f"{head}{_said(x, a)}, {_said(y, b)}{note}"
        if not low <= b <= high:
            beyond[b > high].append((a, said))
            continue
        row: dict[str, Any] = {"x": a, "y": b, "said": said}
        rows.append({**row, "shade": round(line.shades[number], 3)} if line.shades else row)
    mark: dict[str, Any] = {"type": "point", "filled": True, "size": 34 if scatter else 24, "opacity": 0.9}
    encoding: dict[str, Any] = {"x": {"field": "x"}, "y": {"field": "y"}, "description": {"field": "said"}}
    if line.shades:
        mark |= {"stroke": one.colour, "strokeWidth": 1}
        encoding["fillOpacity"] = {"field": "shade", "type": "quantitative", "scale": None, "legend": None}
    if not scatter or _is_line(line):
        encoding["shape"] = {"value": one.shape}
    encoding["strokeDash"] = {"value": _SOLID}
    if rows:
        yield _layer(one, {**mark, "aria": True}, rows, **encoding)
    for above, shape in ((True, "triangle-up"), (False, "triangle-down")):
        if beyond[above]:
            places, said = zip(*beyond[above], strict=True)
            yield _at_edge(one, shape, places, said, 4 if above else HEIGHT - 4, filled=True)


def _said(axis: Axis, value: float) -> str:
    if axis.names:
        number = round(value)
        return printable(axis.names[number]) if 0 <= number < len(axis.names) else ""
    return f"{printable(axis.label)} {value:.5g}"


def _at_edge(
    one: _Drawn, shape: str, places: Iterable[float], said: Iterable[str], edge: int, *, filled: bool
) -> dict[str, Any]:
    rows = [{"x": a, "said": text} for a, text in zip(places, said, strict=True)]
    mark = {"type": "point", "filled": filled, "size": 40, "strokeWidth": 1.6, "aria": True}
    return _layer(
        one,
        mark,
        rows,
        x={"field": "x"},
        y={"value": edge},
        shape={"value": shape},
        strokeDash={"value": _SOLID},
        description={"field": "said"},
    )


def _layer(one: _Drawn, mark: dict[str, Any], rows: list[dict[str, Any]], **encoding: Any) -> dict[str, Any]:
    values = [{"series": one.name, **row} for row in rows]
    return {"data": {"values": values}, "mark": {"aria": False, "clip": True, **mark}, "encoding": encoding}


def _extent(chart: Chart, which: int) -> tuple[float, float]:
    """The smallest and the largest value that an axis has to show, with a little room at both ends."""
    axis = (chart.x, chart.y)[which]
    if axis.names:
        return -0.5, len(axis.names) - 0.5
    values: list[float] = []
    for line in chart.lines:
        shown = [pair for pair in line.points if chart.x.shows(pair[0]) and chart.y.shows(pair[1])]
        values += [pair[which] for pair in shown]
        if which == 0:
            values += [a for a in line.failed if axis.shows(a)]
        else:
            values += [end for _, low, high in line.band for end in (low, high) if axis.shows(end)]
            values += [end for _, low, _, high in line.bars for end in (low, high) if axis.shows(end)]
    ends = axis.limits or (min(values, default=0.0), max(values, default=1.0))
    low, high = (max(-LARGEST, min(end, LARGEST)) for end in ends)
    if axis.log:
        low, high = (max(end, 1 / LARGEST) for end in (low, high))
        factor = math.exp(0.04 * (math.log(high) - math.log(low))) if high > low else 2.0
        return max(low / factor, 0.1 / LARGEST), min(high * factor, 10 * LARGEST)
    room = (high - low) * 0.04 or abs(high) * 0.5 or 0.5
    return low - room, high + room


def _axis(axis: Axis, extent: tuple[float, float]) -> dict[str, Any]:
    scale: dict[str, Any] = {"domain": list(extent), "nice": False, "zero": False}
    shown: dict[str, Any] = {"tickCount": 5}
    if axis.names:
        names = json.dumps([printable(name) for name in axis.names])
        shown = {"values": list(range(len(axis.names))), "labelExpr": f"{names}[datum.value]", "grid": False}
        shown |= {"labelLimit": 110, "ticks": False}
        if len(axis.names) > 3 or sum(map(len, axis.names)) > 45:
            shown |= {"labelAngle": -30, "labelAlign": "right"}
    if axis.log:
        scale["type"] = "log"
        shown = {"values": _ratios(*extent), "format": "~g"}
        if extent[0] >= 1 and extent[1] < 1e7:
            shown["format"] = ",~g" if extent[1] < 1e5 else "~s"
    return {"type": "quantitative", "title": printable(axis.label) or None, "scale": scale, "axis": shown}


def _ratios(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 times these where there is room; Vega would draw a line for each 1, 2, ..., 9."""
    decades = math.log10(high) - math.log10(low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if decades > 2.5 else (1, 2, 5) if decades > 0.7 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    found = [float(f"{factor * 10.0**power:.3g}") for power in powers for factor in factors]
    found = [tick for tick in found if low <= tick <= high]
    if len(found) < 2:
        return [float(f"{low * 10 ** (decades * part):.3g}") for part in (0.1, 0.5, 0.9)]
    return found[:: -(-len(found) // 7)]


_CONFIG: dict[str, Any] = {
    "font": _FONT,
    "aria": True,
    "view": {"stroke": _INK, "strokeOpacity": 0.3},
    "axis": {
        "aria": False,
        "labelColor": _INK,
        "titleColor": _INK,
        "titleFontWeight": "normal",
        "labelFontSize": 10.5,
        "titleFontSize": 11,
        "titlePadding": 6,
        "tickColor": _INK,
        "tickOpacity": 0.4,
        "tickSize": 4,
        "domain": False,
        "gridColor": _INK,
        "gridOpacity": 0.12,
        "labelOverlap": "greedy",
    },
    "legend": {"aria": False, "labelColor": _INK, "labelFontSize": 10.5, "rowPadding": 3, "offset": 6},
}
