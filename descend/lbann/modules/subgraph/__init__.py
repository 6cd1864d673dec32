"""Modules whose parts lie on grids of processes."""

from descend.zoo.modules import MultiheadAttentionAllsubGraph

__all__ = ["MultiheadAttentionAllsubGraph"]
