"""Plots as SVG: lines, bands and points on straight or logarithmic axes.

A point says its numbers under the pointer; with the page's script a click in the legend hides a series and a dragged
rectangle is looked at closer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from descend import svg

if TYPE_CHECKING:
    from collections.abc import Callable

    Place = Callable[[float, float], tuple[float, float]]

__all__ = ["Axis", "Line", "plot"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
_GUIDE = "#999999"
_WIDTH, _HEIGHT = 700, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 180, 16, 46


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: What it shows, with its unit.
        log: Whether it is logarithmic.
        names: Of the values 0, 1, ..., where it has no numbers.
    """

    label: str
    log: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value stands, before it is scaled to the plot."""
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        """Whether a value has a place on it."""
        return math.isfinite(value) and (value > 0 or not self.log)


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        name: In the legend.
        points: (x, y); what is not finite is left out.
        band: (x, low, high) around it.
        joined: Whether points are joined.
        marked: Whether points are drawn.
        dashed: For guides and fits.
        failed: x of those without a value, drawn as crosses at an edge.
        failed_on_top: At which edge.
        shades: How full each point is, 0 to 1.
        notes: What each point says beside its numbers.
        bars: (x, low, middle, high) of upright intervals.
        colour: Number of the colour; −1 is grey; None takes the next one.
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


def plot(lines: list[Line], x: Axis, y: Axis) -> str:
    """An SVG of fixed size, the same text for the same numbers."""
    shown = [(a, b) for line in lines for a, b in line.points if x.shows(a) and y.shows(b)]
    if not shown:
        return "<p>nothing to draw</p>"
    across = [a for a, _ in shown] + [a for line in lines for a in line.failed if x.shows(a)]
    across += [-0.5, len(x.names) - 0.5] if x.names else []
    columns, rows = _Scale([x.place(a) for a in across]), _Scale([y.place(b) for _, b in shown])

    def at(a: float, b: float) -> tuple[float, float]:
        over = _LEFT + columns.part(x.place(a)) * (_WIDTH - _LEFT - _RIGHT)
        down = _HEIGHT - _BOTTOM - rows.part(y.place(b)) * (_HEIGHT - _TOP - _BOTTOM)
        return round(over, 1), round(min(max(down, _TOP), _HEIGHT - _BOTTOM), 1)

    level = 10**rows.low if y.log else rows.low, 10**rows.high if y.log else rows.high
    parts = [*_frame(columns, rows, x, y)]
    for number, line in enumerate(lines):
        chosen = number if line.colour is None else line.colour
        colour = _GUIDE if chosen < 0 else _COLOURS[chosen % len(_COLOURS)]
        drawn = [*_drawn(line, colour, x, y, at), *_failed(line, colour, x, at, level[line.failed_on_top])]
        parts.append(f'<g data-series="{number}">{"".join(drawn)}</g>')
        parts.append(f'<g data-legend="{number}">{"".join(_legend(line, colour, number))}</g>')
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}"}
    return svg.document({**size, "role": "img", "font-size": 11, "font-family": "sans-serif"}, parts)


class _Scale:
    """From places to the part of an axis, with a little room at both ends."""

    def __init__(self, places: list[float]) -> None:
        low, high = min(places), max(places)
        room = (high - low) * 0.04 or max(abs(high) * 0.05, 0.5)
        self.low, self.high = low - room, high + room

    def part(self, place: float) -> float:
        return (place - self.low) / (self.high - self.low)

    def ticks(self, log: bool) -> list[float]:
        """Round values within, as values and not as places."""
        if log:
            return self._ratios()
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(step * factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step)
        return [round((first + number) * step, 12) for number in range(int((self.high - first * step) / step) + 1)]

    def _ratios(self) -> list[float]:
        """Powers of ten, and 2 and 5 times these where there is room."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        factors = (1,) if self.high - self.low > 2.5 else (1, 2, 5)
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [tick for tick in found if self.low <= math.log10(tick) <= self.high]
        if len(found) < 2:
            return [10**place for place in (self.low + (self.high - self.low) * part / 4 for part in (0.5, 2, 3.5))]
        return found[:: -(-len(found) // 8)]


def _frame(columns: _Scale, rows: _Scale, x: Axis, y: Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" fill="none" stroke="#999"/>'
    ]
    named = {float(place): name for place, name in enumerate(x.names)}
    for number, tick in enumerate(named or columns.ticks(x.log)):
        across = round(_LEFT + columns.part(x.place(tick)) * (right - _LEFT), 1)
        below = bottom + 14 + (11 * (number % 2) if len(named) > 4 else 0)
        said = svg.text(named[tick]) if named else _tick(tick)
        parts.append(f'<path d="M{across} {bottom}V{_TOP}" stroke="#eee"/>')
        parts.append(f'<text x="{across}" y="{below}" text-anchor="middle">{said}</text>')
    for tick in rows.ticks(y.log):
        down = round(bottom - rows.part(y.place(tick)) * (bottom - _TOP), 1)
        parts.append(f'<path d="M{_LEFT} {down}H{right}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{down + 4}" text-anchor="end">{_tick(tick)}</text>')
    middle = (_LEFT + right) // 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{svg.text(x.label)}</text>')
    turned = f'transform="rotate(-90 14 {(bottom + _TOP) // 2})"'
    parts.append(f'<text x="14" y="{(bottom + _TOP) // 2}" text-anchor="middle" {turned}>{svg.text(y.label)}</text>')
    return parts


def _tick(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _drawn(line: Line, colour: str, x: Axis, y: Axis, place: Place) -> list[str]:
    parts: list[str] = []
    band = [(a, low, high) for a, low, high in line.band if x.shows(a) and y.shows(low) and y.shows(high)]
    if len(band) > 1:
        there = " ".join("{},{}".format(*place(a, high)) for a, _, high in band)
        back = " ".join("{},{}".format(*place(a, low)) for a, low, _ in reversed(band))
        parts.append(f'<polygon points="{there} {back}" fill="{colour}" opacity="0.15"/>')
    points = [(a, b) for a, b in line.points if x.shows(a) and y.shows(b)]
    if line.joined and len(points) > 1:
        path = " ".join("{},{}".format(*place(a, b)) for a, b in points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
    for a, low, middle, high in line.bars:
        (across, bottom), (_, centre), (_, top) = place(a, low), place(a, middle), place(a, high)
        path = f"M{across} {bottom}V{top}M{across - 7:.1f} {centre}h14"
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
    if line.marked:
        parts += _marks(line, colour, x, y, place)
    return parts


def _marks(line: Line, colour: str, x: Axis, y: Axis, place: Place) -> list[str]:
    parts: list[str] = []
    for number, (a, b) in enumerate(line.points):
        if not (x.shows(a) and y.shows(b)):
            continue
        across, down = place(a, b)
        note = f", {line.notes[number]}" if line.notes else ""
        said = svg.text(f"{line.name}: {x.label} {a:.5g}, {y.label} {b:.5g}{note}")
        full = f' fill-opacity="{line.shades[number]:.2f}" stroke="{colour}"' if line.shades else ""
        parts.append(f'<circle cx="{across}" cy="{down}" r="3.5" fill="{colour}"{full}><title>{said}</title></circle>')
    return parts


def _failed(line: Line, colour: str, x: Axis, place: Place, level: float) -> list[str]:
    """A cross for each that has no value."""
    parts: list[str] = []
    for a in line.failed:
        if x.shows(a):
            across, down = place(a, level)
            down += 6 if line.failed_on_top else -6
            said = svg.text(f"{line.name}: {x.label} {a:.5g}, failed")
            cross = f"M{across - 3:.1f} {down - 3:.1f}l6 6m0 -6l-6 6"
            parts.append(f'<path d="{cross}" stroke="{colour}" stroke-width="1.5"><title>{said}</title></path>')
    return parts


def _legend(line: Line, colour: str, number: int) -> list[str]:
    down = _TOP + 12 + 16 * number
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    stroke = f'<path d="M{_WIDTH - _RIGHT + 8} {down - 4}h18" stroke="{colour}" stroke-width="2"{dash}/>'
    return [stroke, f'<text x="{_WIDTH - _RIGHT + 31}" y="{down}">{svg.text(line.name[:26])}</text>']
