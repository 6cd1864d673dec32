"""Plots as SVG: lines, bands and points on straight or logarithmic axes. A point says its numbers under the pointer."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Place = Callable[[float, float], tuple[float, float]]

__all__ = ["Axis", "Line", "plot"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 16, 46


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: What it shows, with its unit.
        log: Whether it is logarithmic.
    """

    label: str
    log: bool = False

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
    """

    name: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = field(default=())
    joined: bool = True
    marked: bool = True
    dashed: bool = False


def plot(lines: list[Line], x: Axis, y: Axis) -> str:
    """An SVG of fixed size, the same text for the same numbers."""
    shown = [(a, b) for line in lines for a, b in line.points if x.shows(a) and y.shows(b)]
    if not shown:
        return "<p>nothing to draw</p>"
    columns, rows = _Scale([x.place(a) for a, _ in shown]), _Scale([y.place(b) for _, b in shown])

    def at(a: float, b: float) -> tuple[float, float]:
        across = _LEFT + columns.part(x.place(a)) * (_WIDTH - _LEFT - _RIGHT)
        down = _HEIGHT - _BOTTOM - rows.part(y.place(b)) * (_HEIGHT - _TOP - _BOTTOM)
        return round(across, 1), round(min(max(down, _TOP), _HEIGHT - _BOTTOM), 1)

    parts = [*_frame(columns, rows, x, y)]
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += _drawn(line, colour, x, y, at)
        parts += _legend(line, colour, number)
    body = "".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="11" font-family="sans-serif">{body}</svg>'


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
            low, high = math.ceil(self.low), math.floor(self.high)
            if high - low >= 1:
                step = max(1, (high - low) // 6)
                return [10.0**power for power in range(low, high + 1, step)]
            return [10**place for place in (self.low + (self.high - self.low) * part / 4 for part in (0.5, 2, 3.5))]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(step * factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step)
        return [round((first + number) * step, 12) for number in range(int((self.high - first * step) / step) + 1)]


def _frame(columns: _Scale, rows: _Scale, x: Axis, y: Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" fill="none" stroke="#999"/>'
    ]
    for tick in columns.ticks(x.log):
        across = round(_LEFT + columns.part(x.place(tick)) * (right - _LEFT), 1)
        parts.append(f'<path d="M{across} {bottom}V{_TOP}" stroke="#eee"/>')
        parts.append(f'<text x="{across}" y="{bottom + 14}" text-anchor="middle">{tick:.3g}</text>')
    for tick in rows.ticks(y.log):
        down = round(bottom - rows.part(y.place(tick)) * (bottom - _TOP), 1)
        parts.append(f'<path d="M{_LEFT} {down}H{right}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{down + 4}" text-anchor="end">{tick:.3g}</text>')
    middle = (_LEFT + right) // 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{html.escape(x.label)}</text>')
    turned = f'transform="rotate(-90 14 {(bottom + _TOP) // 2})"'
    parts.append(f'<text x="14" y="{(bottom + _TOP) // 2}" text-anchor="middle" {turned}>{html.escape(y.label)}</text>')
    return parts


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
    if line.marked:
        for a, b in points:
            across, down = place(a, b)
            said = html.escape(f"{line.name}: {x.label} {a:.5g}, {y.label} {b:.5g}")
            parts.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"><title>{said}</title></circle>')
    return parts


def _legend(line: Line, colour: str, number: int) -> list[str]:
    down = _TOP + 12 + 16 * number
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    stroke = f'<path d="M{_WIDTH - _RIGHT + 8} {down - 4}h18" stroke="{colour}" stroke-width="2"{dash}/>'
    return [stroke, f'<text x="{_WIDTH - _RIGHT + 31}" y="{down}">{html.escape(line.name[:24])}</text>']
