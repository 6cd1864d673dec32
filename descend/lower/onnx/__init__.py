"""ONNX out of a checked graph, and a model out of ONNX. Needs the library onnx."""

from descend.lower.onnx.export import export
from descend.lower.onnx.graph_exporter import OPSET
from descend.lower.onnx.load import load

__all__ = ["OPSET", "export", "load"]
