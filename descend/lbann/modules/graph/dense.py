"""Convolutions of graphs that are matrices."""

from descend.zoo.modules import DenseGCNConv, DenseGraphConv, DenseNNConv

__all__ = ["DenseGCNConv", "DenseGraphConv", "DenseNNConv"]
