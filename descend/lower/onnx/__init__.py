"""ONNX out of a checked graph, and a model out of ONNX. Needs the library onnx."""

from descend.lower.onnx.export import export
from descend.lower.onnx.read import read
from descend.lower.onnx.writer import OPSET

__all__ = ["OPSET", "export", "read"]
