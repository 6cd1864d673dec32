"""Layers with torch's rules for shapes."""

from descend.zoo.modules import PytorchLayerNorm, PytorchLinear, PytorchMatmul

__all__ = ["PytorchLayerNorm", "PytorchLinear", "PytorchMatmul"]
