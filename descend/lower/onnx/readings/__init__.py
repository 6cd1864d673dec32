"""ONNX operators as layers, a module a family. Importing them fills the table of `reader.reading`."""

from descend.lower.onnx.readings import (
    activations,
    matrices,
    normalization,
    numbers,
    pieces,
    reductions,
    sequences,
    shapes,
    windows,
)
from descend.lower.onnx.readings.matrices import fully_connected
from descend.lower.onnx.readings.numbers import ENTRYWISE, JOINABLE
from descend.lower.onnx.readings.shapes import wanted_sizes
from descend.lower.onnx.readings.steps import picked, piece_bounds

__all__ = [
    "ENTRYWISE",
    "JOINABLE",
    "activations",
    "fully_connected",
    "matrices",
    "normalization",
    "numbers",
    "picked",
    "piece_bounds",
    "pieces",
    "reductions",
    "sequences",
    "shapes",
    "wanted_sizes",
    "windows",
]
