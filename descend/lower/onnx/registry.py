"""The table of functions that make layers of an operator's nodes."""

from __future__ import annotations

from collections.abc import Callable

from descend.lower.onnx.graph_importer import GraphImporter
from descend.lower.onnx.values import Node, Value

__all__ = ["NodeImporter", "importer", "imports"]

NodeImporter = Callable[[GraphImporter, Node], Value | tuple[Value | None, ...]]  # None: an output that nothing takes

_IMPORTERS: dict[str, NodeImporter] = {}


def imports(*kinds: str) -> Callable[[NodeImporter], NodeImporter]:
    """Register the decorated function for these operators."""

    def keep(function: NodeImporter) -> NodeImporter:
        _IMPORTERS.update(dict.fromkeys(kinds, function))
        return function

    return keep


def importer(kind: str) -> NodeImporter | None:
    """The function for an operator; None where there is none."""
    return _IMPORTERS.get(kind)
