"""ONNX out of a checked graph, and a model out of ONNX. Needs the library onnx."""

from descend.lower.onnx.export import export
from descend.lower.onnx.file_importer import load
from descend.lower.onnx.graph_exporter import OPSET

__all__ = ["OPSET", "export", "load"]
