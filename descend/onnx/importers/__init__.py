"""ONNX operators as layers, a module a family. Importing them fills the table of `graph_importer`."""

from descend.onnx.importers import (
    activations,
    elementwise,
    matrices,
    sequences,
    shapes,
    windows,
)
from descend.onnx.importers.elementwise import ENTRYWISE, JOINABLE
from descend.onnx.importers.matrices import fully_connected
from descend.onnx.importers.shapes import new_axes, wanted_sizes
from descend.onnx.importers.steps import picked, piece_bounds

__all__ = [
    "ENTRYWISE",
    "JOINABLE",
    "activations",
    "elementwise",
    "fully_connected",
    "matrices",
    "new_axes",
    "picked",
    "piece_bounds",
    "sequences",
    "shapes",
    "wanted_sizes",
    "windows",
]
