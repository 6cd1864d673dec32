"""Activations made of several layers."""

from descend.zoo.modules import Gelu, Gelu_approx, Silu

__all__ = ["Gelu", "Gelu_approx", "Silu"]
