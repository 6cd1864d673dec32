"""The problems that a check has found so far, each with its place in the text, and how they name things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.arguments.leniency import refused
from descend.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from descend.arguments.leniency import Deviation
    from descend.graph.layer import Layer
    from descend.graph.weights import Weights

__all__ = ["ProblemList", "listed", "name_of"]

_MAX_COMPARED = 100_000  # names that are compared for suggestions in one check; each takes some 10 microseconds
_SHOWN_NAMES = 8  # a message lists as many names and counts the rest


class ProblemList:
    """Collects the problems of one check, in the order in which they are found.

    Attributes:
        found: The messages.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._compared = 0

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, where: str | None, *problems: str) -> None:
        """Append problems of the thing at `where`."""
        self.found += [f"{where}: {problem}" if where else problem for problem in problems]

    def refuses(self, deviation: Deviation, where: str | None, problem: str) -> bool:
        """Whether something that LBANN runs is an error; where it is allowed, a warning says so."""
        return refused(deviation, f"{where}: {problem}" if where else problem)

    def add_to_layer(self, layer: Layer, *problems: str) -> None:
        """Append problems, each of which continues a sentence that begins with the layer's name and kind."""
        self.add(layer.where, *(f"layer '{layer.name}' ({type(layer).__name__}) {problem}" for problem in problems))

    def near(self, name: str, options: Collection[str]) -> str:
        """The nearest existing name as a suggestion; "" once comparing names would dominate the time of the check."""
        self._compared += len(options)
        return nearest(name, options) if self._compared <= _MAX_COMPARED else ""


def name_of(thing: Layer | Weights | str) -> str:
    """The name of a layer or of weights, which a text may give as a name alone."""
    return thing if isinstance(thing, str) else thing.name


def listed(names: Iterable[str]) -> str:
    """The first names in quotes, and how many more there are."""
    names = list(names)
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
