"""Convolutions of graphs."""

from descend.modules import (
    DenseGCNConv,
    DenseGraphConv,
    DenseNNConv,
    GatedGraphConv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphExpand,
    GraphReduce,
    NNConv,
)

__all__ = [
    "DenseGCNConv",
    "DenseGraphConv",
    "DenseNNConv",
    "GCNConv",
    "GINConv",
    "GatedGraphConv",
    "GraphConv",
    "GraphExpand",
    "GraphReduce",
    "NNConv",
]
