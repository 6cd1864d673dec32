"""Activations made of several layers."""

from descend.modules import Gelu, Gelu_approx, Silu

__all__ = ["Gelu", "Gelu_approx", "Silu"]
