"""Modules: groups of layers that are made in each call and share their weights. Those of `descend.modules`."""

from importlib import import_module

from descend.lbann.modules import base
from descend.lbann.modules.base import Module, NNConv
from descend.lbann.places import children
from descend.zoo.modules import (
    GRU,
    ChannelwiseFullyConnectedModule,
    ChannelwiseGRU,
    Convolution2dModule,
    Convolution3dModule,
    ConvolutionModule,
    Cumsum,
    DenseGCNConv,
    DenseGraphConv,
    DenseNNConv,
    FullyConnectedModule,
    GatedGraphConv,
    GCNConv,
    Gelu,
    Gelu_approx,
    GINConv,
    GraphConv,
    GraphExpand,
    GraphReduce,
    LearnedInputEncoding,
    LSTMCell,
    MultiheadAttention,
    MultiheadAttentionAllsubGraph,
    PeriodicPadding2D,
    PeriodicPadding3D,
    Permute,
    PositionalEncoding,
    PytorchLayerNorm,
    PytorchLinear,
    PytorchMatmul,
    RotaryPositionalEmbedding,
    Silu,
)

__all__ = [
    "GRU",
    "ChannelwiseFullyConnectedModule",
    "ChannelwiseGRU",
    "Convolution2dModule",
    "Convolution3dModule",
    "ConvolutionModule",
    "Cumsum",
    "DenseGCNConv",
    "DenseGraphConv",
    "DenseNNConv",
    "FullyConnectedModule",
    "GCNConv",
    "GINConv",
    "GatedGraphConv",
    "Gelu",
    "Gelu_approx",
    "GraphConv",
    "GraphExpand",
    "GraphReduce",
    "LSTMCell",
    "LearnedInputEncoding",
    "Module",
    "MultiheadAttention",
    "MultiheadAttentionAllsubGraph",
    "NNConv",
    "PeriodicPadding2D",
    "PeriodicPadding3D",
    "Permute",
    "PositionalEncoding",
    "PytorchLayerNorm",
    "PytorchLinear",
    "PytorchMatmul",
    "RotaryPositionalEmbedding",
    "Silu",
    "base",
]

for _name in children("modules"):
    globals()[_name] = import_module(f"{__name__}.{_name}")
    __all__ += [_name]  # pyright: ignore[reportUnsupportedDunderAll]
