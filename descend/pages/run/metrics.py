"""The rows of a `metrics.jsonl` as a page needs them, in memory that does not grow with their number.

Rows are added one by one, as they are read or written. Series are thinned while they grow; of everything else the last
value, a sum or a count is kept. What a row has that no run writes is left out, and said.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.pages.chart import LARGEST
from descend.runtime.json_object import without_repeats
from descend.runtime.rows import RESTART, is_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MAX_POINTS", "Passes", "RunMetrics", "ThinnedSeries", "is_count", "is_number", "thinned"]

MAX_POINTS = 300  # of a line
_MAX_SERIES = 1_000  # of a file
_MAX_NAME = 500  # characters
_MAX_LISTED = 200  # steps without an update, or restarts
_LARGEST_COUNT = 2**63 - 1
_DECODER = json.JSONDecoder(object_pairs_hook=without_repeats)
_ABOUT = frozenset(("mode", "epoch", "step", "samples", "seconds", "skipped_steps", "trainer", "time"))


def is_number(value: object) -> bool:
    """Whether a value is a number that a float holds; NaN and infinities are, and booleans are not."""
    if type(value) is int:
        return -LARGEST <= value <= LARGEST
    return type(value) is float


def is_count(value: object) -> bool:
    """Whether a value is an integer >= 0 of a size that something countable has."""
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def thinned(steps: Sequence[float], values: Sequence[float], most: int = MAX_POINTS) -> list[int]:
    """Places of at most `most` points that stand for all: the first, the last, and of equal parts of the steps the
    lowest and the highest.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    begin, parts = min(steps), max((most - 2) // 2, 1)
    scale = parts / ((max(steps) - begin) or 1.0)
    lowest: dict[int, int] = {}
    highest: dict[int, int] = {}
    for place, (step, value) in enumerate(zip(steps, values, strict=True)):
        part = min(int((step - begin) * scale), parts - 1)
        if part not in lowest or value < values[lowest[part]]:
            lowest[part] = place
        if part not in highest or value > values[highest[part]]:
            highest[part] = place
    return sorted({0, *lowest.values(), *highest.values(), count - 1})


class ThinnedSeries:
    """A quantity over the updates, in the order of its rows.

    Attributes:
        count: Rows that had it.
        last: Its last value, finite or not.
        undrawn: Values without a place on a chart: not finite, or beyond `LARGEST`.
    """

    __slots__ = ("_steps", "_values", "count", "last", "undrawn")

    def __init__(self) -> None:
        self._steps, self._values = array("d"), array("d")
        self.count, self.undrawn = 0, 0
        self.last = 0.0

    def add(self, step: float, value: float) -> None:
        """Add the value of a row."""
        self.count += 1
        self.last = value
        if not abs(value) <= LARGEST:
            self.undrawn += 1
            return
        self._steps.append(step)
        self._values.append(value)
        if len(self._values) > 2 * MAX_POINTS:
            kept = thinned(self._steps, self._values)
            self._steps = array("d", [self._steps[place] for place in kept])
            self._values = array("d", [self._values[place] for place in kept])

    def points(self, most: int = MAX_POINTS) -> list[tuple[float, float]]:
        """(step, value) of at most so many points; the lowest, the highest and the last are among them."""
        steps, values = self._steps, self._values
        return [(steps[place], values[place]) for place in thinned(steps, values, most)]


@dataclass
class Passes:
    """Passes over samples of one mode: their number, and what those took that say both seconds and samples."""

    count: int = 0
    seconds: float = 0.0
    samples: int = 0


@dataclass
class _LeftOut:
    """Things that could not be read, of which the first is described."""

    count: int = 0
    first: str = ""

    def add(self, what: str) -> None:
        self.count += 1
        self.first = self.first or what


@dataclass
class RunMetrics:
    """The series in the rows of one `metrics.jsonl`.

    Attributes:
        lines: That were read.
        step: Updates made, as far as they were recorded.
        modes: Whether any row of a mode has an objective, in the order of the file.
        quantities: Whether any row with a quantity has an objective, in the order of the file.
        series: By mode and quantity.
        last: Of each mode the last row with an objective, its numbers alone.
        passes: By mode.
        throughput: Samples of training per second.
        skipped: (step, steps without an update) of the last rows that had some.
        restarts: Steps at which the run was continued, the last ones.
        seconds: Of all rows.
        skipped_rows: How many rows had steps without an update.
        restart_rows: How many restarts there were.
    """

    lines: int = 0
    step: int = 0
    seconds: float = 0.0
    modes: dict[str, bool] = field(default_factory=dict[str, bool])
    quantities: dict[str, bool] = field(default_factory=dict[str, bool])
    series: dict[tuple[str, str], ThinnedSeries] = field(default_factory=dict[tuple[str, str], ThinnedSeries])
    last: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    passes: dict[str, Passes] = field(default_factory=dict[str, Passes])
    throughput: ThinnedSeries = field(default_factory=ThinnedSeries)
    skipped: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_LISTED))
    restarts: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_LISTED))
    skipped_rows: int = 0
    restart_rows: int = 0
    _lines: _LeftOut = field(default_factory=_LeftOut)
    _values: _LeftOut = field(default_factory=_LeftOut)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> RunMetrics:
        """Make it from rows that are in memory."""
        made = cls()
        for row in rows:
            made.lines += 1
            made.add(row)
        return made

    @property
    def problems(self) -> list[str]:
        """Sentences on what was left out."""
        lines, values = self._lines, self._values
        found = [f"{lines.count:,} of {self.lines:,} lines are left out; the first is {lines.first}"]
        more = [f"{values.count:,} values are left out; the first is in {values.first}"]
        return (found if lines.count else []) + (more if values.count else [])

    def add_line(self, line: bytes) -> None:
        """Add a line of the file; empty ones count nothing."""
        self.lines += 1
        if not line or line == b"\r":
            return
        try:
            row = _DECODER.decode(line.decode())
        except (ValueError, RecursionError) as error:
            self.pass_over(f"it is no JSON ({error})" if not isinstance(error, RecursionError) else "it is too deep")
            return
        self.add(row)

    def pass_over(self, why: str) -> None:
        """Leave out the line that was read last."""
        self._lines.add(f"line {self.lines:,}: {why:.200}")

    def add(self, row: Any) -> None:
        """Add a row."""
        if not _is_row(row):
            what = "a row must be an object with the mode, and with epoch and step as integers >= 0"
            self.pass_over(f"{what}, got {shown(row)}")
            return
        mode, step = cast("str", row["mode"]), cast("int", row["step"])
        if mode == RESTART:
            self.restarts.append(step)
            self.restart_rows += 1
            return
        if not self._has_room(self.modes, mode, "mode"):
            return
        self.step = max(self.step, step)
        has_objective = is_number(row.get("objective"))
        self.modes[mode] = self.modes.get(mode, False) or has_objective
        numbers = self._numbers(row, mode, step, has_objective)
        if has_objective:
            self.last[mode] = {"epoch": row["epoch"], "step": step, **numbers}
        self._count(row, mode, step)

    def _numbers(self, row: dict[str, Any], mode: str, step: int, has_objective: bool) -> dict[str, float]:
        """The quantities of a row, which are added to their series."""
        numbers: dict[str, float] = {}
        for name, value in row.items():
            if name in _ABOUT:
                continue
            if type(value) is not float and not is_number(value):
                self._values.add(f"line {self.lines:,}: {shown(name)} must be a number, got {shown(value)}")
                continue
            series = self.series.get((mode, name))
            if series is None:
                if len(self.series) >= _MAX_SERIES or not self._has_room(self.quantities, name, "quantity"):
                    self._values.add(f"line {self.lines:,}: {shown(name)} is one of more than {_MAX_SERIES:,} series")
                    continue
                series = self.series[mode, name] = ThinnedSeries()
                self.quantities.setdefault(name, has_objective)
            if has_objective:
                self.quantities[name] = True
            series.add(step, float(value))
            numbers[name] = value
        return numbers

    def _has_room(self, known: Mapping[str, bool], name: str, what: str) -> bool:
        """Whether a name is known or can be; a file with thousands of modes is no run's."""
        if name in known or (len(name) <= _MAX_NAME and len(known) < _MAX_SERIES):
            return True
        self._values.add(f"line {self.lines:,}: the {what} {shown(name)} is too long, or one of too many")
        return False

    def _count(self, row: dict[str, Any], mode: str, step: int) -> None:
        """Add a row to sums and lists."""
        seconds = self._taken(row, "seconds", _is_duration, "a number >= 0") if "seconds" in row else None
        samples = self._taken(row, "samples", is_count, "an integer >= 0") if "samples" in row else None
        if "skipped_steps" in row and (skipped := self._taken(row, "skipped_steps", is_count, "an integer >= 0")):
            self.skipped.append((step, skipped))
            self.skipped_rows += 1
        self.seconds += seconds or 0.0
        if not seconds or samples is None:
            return
        passes = self.passes.setdefault(mode, Passes())
        passes.count += 1
        passes.seconds += seconds
        passes.samples += samples
        if mode == "train":
            self.throughput.add(step, samples / seconds)

    def _taken(self, row: dict[str, Any], name: str, fits: Any, what: str) -> Any:
        """A value of a row that is of its kind; None where it is missing or another."""
        value = row[name]
        if value is None or fits(value):
            return value
        self._values.add(f"line {self.lines:,}: {name} must be {what}, got {shown(value)}")
        return None


def _is_row(row: Any) -> bool:
    """As `is_row`, and epoch and step are counts; this is asked for millions of rows."""
    if type(row) is not dict:
        return is_row(row)
    found = cast("dict[str, Any]", row)
    return type(found.get("mode")) is str and is_count(found.get("epoch")) and is_count(found.get("step"))


def _is_duration(value: object) -> bool:
    return is_number(value) and 0 <= cast("float", value) <= LARGEST
