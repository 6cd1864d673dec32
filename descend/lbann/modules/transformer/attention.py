"""Attention."""

from descend.modules import MultiheadAttention

__all__ = ["MultiheadAttention"]
