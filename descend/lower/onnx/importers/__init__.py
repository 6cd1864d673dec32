"""ONNX operators as layers, a module a family. Importing them fills the table of `registry`."""

from descend.lower.onnx.importers import (
    activations,
    elementwise,
    matrices,
    normalization,
    pieces,
    reductions,
    sequences,
    shapes,
    windows,
)
from descend.lower.onnx.importers.elementwise import ENTRYWISE, JOINABLE
from descend.lower.onnx.importers.matrices import fully_connected
from descend.lower.onnx.importers.shapes import new_axes, wanted_sizes
from descend.lower.onnx.importers.steps import picked, piece_bounds

__all__ = [
    "ENTRYWISE",
    "JOINABLE",
    "activations",
    "elementwise",
    "fully_connected",
    "matrices",
    "new_axes",
    "normalization",
    "picked",
    "piece_bounds",
    "pieces",
    "reductions",
    "sequences",
    "shapes",
    "wanted_sizes",
    "windows",
]
