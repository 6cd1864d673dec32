"""Convolutions of graphs."""

from descend.lbann.modules.graph.sparse import NNConv
from descend.zoo.modules import (
    DenseGCNConv,
    DenseGraphConv,
    DenseNNConv,
    GatedGraphConv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphExpand,
    GraphReduce,
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
