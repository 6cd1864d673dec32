"""Graph to torch.nn.Module, one small function a layer kind."""

from descend.lower.initialize import initial_values
from descend.lower.module import LoweredModel, lower
from descend.lower.registry import Forward, Lowering, lowers

__all__ = ["Forward", "LoweredModel", "Lowering", "initial_values", "lower", "lowers"]
