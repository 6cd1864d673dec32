"""Attention."""

from descend.zoo.modules import MultiheadAttention

__all__ = ["MultiheadAttention"]
