"""The table of functions that make layers of an operator's nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from descend.onnx.graph_importer import GraphImporter
from descend.onnx.values import Node, Value

__all__ = ["Integers", "NodeImporter", "importer", "imports", "integers_of"]

NodeImporter = Callable[[GraphImporter, Node], Value | tuple[Value | None, ...]]  # None: an output that nothing takes

# What an operator does with integers: its layers compute fractions, and integers in them would be rounded; it moves
# entries and computes nothing; or its importer has layers that compute integers.
Integers = Literal["refused", "moved", "computed"]

_IMPORTERS: dict[str, NodeImporter] = {}
_INTEGERS: dict[str, Integers] = {}


def imports(*kinds: str, integers: Integers = "refused") -> Callable[[NodeImporter], NodeImporter]:
    """Register the decorated function for these operators, and what they do with integers."""

    def keep(function: NodeImporter) -> NodeImporter:
        _IMPORTERS.update(dict.fromkeys(kinds, function))
        _INTEGERS.update(dict.fromkeys(kinds, integers))
        return function

    return keep


def importer(kind: str) -> NodeImporter | None:
    """The function for an operator; None where there is none."""
    return _IMPORTERS.get(kind)


def integers_of(kind: str) -> Integers:
    """How an operator treats integers."""
    return _INTEGERS.get(kind, "refused")
