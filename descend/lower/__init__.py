"""Graph to torch.nn.Module, one small function a layer kind."""

from descend.lower.initialize import initial_values
from descend.lower.module import LoweredModel, PlainModule, lower
from descend.lower.registry import Forward, Lowering, lowers

__all__ = ["Forward", "LoweredModel", "Lowering", "PlainModule", "initial_values", "lower", "lowers"]
