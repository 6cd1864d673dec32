"""What is searched over: one dimension a number, each a map from [0, 1] to values.

{ log = [1e-3, 1] }              equal ratios are equally likely
{ linear = [0, 0.3] }
{ one_minus_log = [5e-3, 0.3] }  1 − x with x by ratio: momentum from 0.995 down to 0.7
{ integer = [1, 4] }
{ choice = [1, 2] }
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from descend.arguments import is_number, shown
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KINDS", "Dimension", "choice", "dimension", "integer", "linear", "log", "one_minus_log"]

KINDS = ("log", "linear", "one_minus_log", "integer", "choice")
_LAST = 1 - 2.0**-30  # of a dimension: no point lies at 1
EDGE = 0.1  # part of a dimension at each end in which a best value says that better ones may lie beyond


@dataclass(frozen=True)
class Dimension:
    """One number that is searched over.

    Args:
        kind: One of `KINDS`.
        options: Two ends, or for "choice" all values.

    Raises:
        ConfigurationError: the ends are not in order, or not of a kind that has them.
    """

    kind: str
    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        given: Any = self.options
        if not isinstance(given, (list, tuple)):
            raise ConfigurationError(f"options must be a list or a tuple, got {shown(given)}")
        object.__setattr__(self, "options", tuple(plain(option) for option in given))
        if problem := self._problem():
            raise ConfigurationError(f"{{ {_bare(self.kind)} = {shown(list(self.options))} }}: {problem}")

    def _problem(self) -> str | None:
        kind: Any = self.kind
        if not isinstance(kind, str) or kind not in KINDS:
            return f"there is no such kind{nearest(_bare(self.kind), KINDS) or ';'} there are {', '.join(KINDS)}"
        if self.kind == "choice":
            distinct = len({_described(option) for option in self.options})
            return None if distinct == len(self.options) > 0 else "there must be at least one option, and no two alike"
        if len(self.options) != 2 or not all(_is_number(end) for end in self.options):
            return "expected two numbers, the lower and the upper end"
        low, high = self.options
        if not low < high:
            return "the lower end must be below the upper one"
        if self.kind in ("log", "one_minus_log") and low <= 0:
            return "a range by ratio begins above 0"
        if self.kind == "one_minus_log" and high > 1:
            return "the distance from 1 is at most 1"
        if self.kind == "integer" and any(end != int(end) for end in self.options):
            return "expected integers"
        if not math.isfinite(float(high) / low if self.kind in ("log", "one_minus_log") else float(high) - low):
            return "the ends are farther from each other than numbers reach"
        return None

    @property
    def ends(self) -> list[Any]:
        """The first value and the last, which of a range is just below its upper end; all of a choice."""
        return list(self.options) if self.kind == "choice" else [self.at(0.0), self.at(_LAST)]

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value of a range of numbers: 0.7 and 0.995 of `one_minus_log(5e-3, 0.3)`."""
        low, high = self.options
        return (1 - high, 1 - low) if self.kind == "one_minus_log" else (low, high)

    def at(self, u: float) -> Any:
        """The value at the part u of the dimension, 0 ≤ u < 1."""
        if self.kind == "choice":
            return self.options[min(int(u * len(self.options)), len(self.options) - 1)]
        low, high = self.options
        if self.kind == "integer":
            return min(int(low) + int(u * (high - low + 1)), int(high))
        if self.kind == "linear":
            return low + (high - low) * u
        ratio = low * (high / low) ** u
        return 1 - ratio if self.kind == "one_minus_log" else ratio

    def place(self, value: float) -> float:
        """Where a value lies, 0 at one end and 1 at the other; the inverse of `at` for ranges of numbers."""
        low, high = self.options
        if self.kind in ("linear", "integer"):
            return (value - low) / (high - low)
        x = 1 - value if self.kind == "one_minus_log" else value
        return math.log(x / low) / math.log(high / low)

    def edge(self, value: float) -> Literal["lower", "upper"] | None:
        """The end that a value lies at, within a tenth of the range; a choice and an integer have none."""
        if self.kind not in ("log", "linear", "one_minus_log"):
            return None
        u = self.place(value)
        if u < EDGE or u > 1 - EDGE:
            low_end = (u < EDGE) != (self.kind == "one_minus_log")
            return "lower" if low_end else "upper"
        return None

    @property
    def size(self) -> str:
        """How wide it is: decades, a width, or a number of options."""
        if self.kind in ("log", "one_minus_log"):
            return f"{math.log10(self.options[1] / self.options[0]):.2g} decades"
        if self.kind == "linear":
            return f"{self.options[1] - self.options[0]:g} wide"
        count = len(self.options) if self.kind == "choice" else self.options[1] - self.options[0] + 1
        return f"{count} values"

    def plain(self) -> dict[str, list[Any]]:
        """As it is written in a file."""
        return {self.kind: list(self.options)}


def _is_number(value: object) -> bool:
    return is_number(value) and math.isfinite(value)


def _described(option: Any) -> str:
    """The repr of an option, by which options differ; of an object without one its address."""
    try:
        return repr(option)
    except Exception:  # of any class
        return f"{type(option).__name__} {id(option)}"


def _bare(kind: object) -> str:
    return kind if isinstance(kind, str) else shown(kind)


def plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's; a tensor without numbers of its own as it is."""
    try:
        return value.tolist() if callable(getattr(value, "tolist", None)) else value
    except Exception:  # of any class: a sparse tensor, one without storage
        return value


def dimension(value: Any) -> Dimension:
    """A dimension from its written form, `{"log": [1e-3, 1]}`.

    Raises:
        ConfigurationError: it is something else.
    """
    if isinstance(value, Dimension):
        return value
    if isinstance(value, Mapping) and len(cast("Mapping[Any, Any]", value)) == 1:
        ((kind, options),) = cast("Mapping[Any, Any]", value).items()
        if isinstance(options, (list, tuple)):
            return Dimension(str(kind), tuple(options))
    raise ConfigurationError(
        f"it is written like {{ log = [1e-3, 1] }}, with one of {', '.join(KINDS)}, and not {shown(value)}"
    )


def log(low: float, high: float) -> Dimension:
    """From `low` to `high` by ratio."""
    return Dimension("log", (low, high))


def linear(low: float, high: float) -> Dimension:
    """From `low` to `high`."""
    return Dimension("linear", (low, high))


def one_minus_log(low: float, high: float) -> Dimension:
    """1 − x with x from `low` to `high` by ratio."""
    return Dimension("one_minus_log", (low, high))


def integer(low: int, high: int) -> Dimension:
    """Integers from `low` to `high`, both included."""
    return Dimension("integer", (low, high))


def choice(*options: Any) -> Dimension:
    """One of several values."""
    return Dimension("choice", options)


def grid(dimensions: Sequence[Dimension], points: int) -> list[tuple[float, ...]]:
    """The centres of equal cells, at least as many a dimension as give `points` in all, in rising order.

    Raises:
        ConfigurationError: `points` is not a product of equal sides.
    """
    side = round(points ** (1 / len(dimensions)))
    if side ** len(dimensions) != points:
        raise ConfigurationError(
            f"a grid over {len(dimensions)} dimensions has a number of points like {side ** len(dimensions)}, "
            f"and {points} trials were asked for"
        )
    cells: list[tuple[float, ...]] = [()]
    for _ in dimensions:
        cells = [(*cell, (place + 0.5) / side) for cell in cells for place in range(side)]
    return cells
