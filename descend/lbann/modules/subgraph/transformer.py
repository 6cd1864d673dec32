"""Attention whose heads lie on grids of processes."""

from descend.zoo.modules import MultiheadAttention, MultiheadAttentionAllsubGraph

__all__ = ["MultiheadAttention", "MultiheadAttentionAllsubGraph"]
