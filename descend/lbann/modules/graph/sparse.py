"""Convolutions of graphs that are lists of edges."""

from descend.modules import GatedGraphConv, GCNConv, GINConv, GraphConv, GraphExpand, GraphReduce, NNConv

__all__ = ["GCNConv", "GINConv", "GatedGraphConv", "GraphConv", "GraphExpand", "GraphReduce", "NNConv"]
