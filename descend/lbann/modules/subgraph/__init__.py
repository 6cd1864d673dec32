"""Modules whose parts lie on grids of processes."""

from descend.modules import MultiheadAttentionAllsubGraph

__all__ = ["MultiheadAttentionAllsubGraph"]
