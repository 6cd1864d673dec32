"""Attention whose heads lie on grids of processes."""

from descend.modules import MultiheadAttention, MultiheadAttentionAllsubGraph

__all__ = ["MultiheadAttention", "MultiheadAttentionAllsubGraph"]
