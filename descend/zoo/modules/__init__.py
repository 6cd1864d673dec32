"""Modules: groups of layers that are created in each call and share their weights among all calls.

Some are functions, as in LBANN: they make layers once, and weights of their own where they need some.
"""

from descend.zoo.modules.attention import MultiheadAttention, MultiheadAttentionAllsubGraph
from descend.zoo.modules.dense import (
    ChannelwiseFullyConnectedModule,
    Convolution2dModule,
    Convolution3dModule,
    ConvolutionModule,
    FullyConnectedModule,
    Gelu,
    Gelu_approx,
    PytorchLayerNorm,
    PytorchLinear,
    PytorchMatmul,
    Silu,
)
from descend.zoo.modules.encoding import LearnedInputEncoding, PositionalEncoding, RotaryPositionalEmbedding
from descend.zoo.modules.graphs import (
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
from descend.zoo.modules.likelihoods import (
    CrossEntropyWithUncertainty,
    GeometricDistributionNegativeLogLikelihood,
    GroupLasso,
    L1WeightRegularization,
    LabelSmoothing,
    PoissonDistributionNegativeLogLikelihood,
    PolyaDistributionNegativeLogLikelihood,
)
from descend.zoo.modules.module import Module
from descend.zoo.modules.recurrent import GRU, ChannelwiseGRU, LSTMCell
from descend.zoo.modules.transformations import (
    Cumsum,
    FFTShift,
    PeriodicPadding2D,
    PeriodicPadding3D,
    Permute,
    RadialProfile,
)

__all__ = [
    "GRU",
    "ChannelwiseFullyConnectedModule",
    "ChannelwiseGRU",
    "Convolution2dModule",
    "Convolution3dModule",
    "ConvolutionModule",
    "CrossEntropyWithUncertainty",
    "Cumsum",
    "DenseGCNConv",
    "DenseGraphConv",
    "DenseNNConv",
    "FFTShift",
    "FullyConnectedModule",
    "GCNConv",
    "GINConv",
    "GatedGraphConv",
    "Gelu",
    "Gelu_approx",
    "GeometricDistributionNegativeLogLikelihood",
    "GraphConv",
    "GraphExpand",
    "GraphReduce",
    "GroupLasso",
    "L1WeightRegularization",
    "LSTMCell",
    "LabelSmoothing",
    "LearnedInputEncoding",
    "Module",
    "MultiheadAttention",
    "MultiheadAttentionAllsubGraph",
    "NNConv",
    "PeriodicPadding2D",
    "PeriodicPadding3D",
    "Permute",
    "PoissonDistributionNegativeLogLikelihood",
    "PolyaDistributionNegativeLogLikelihood",
    "PositionalEncoding",
    "PytorchLayerNorm",
    "PytorchLinear",
    "PytorchMatmul",
    "RadialProfile",
    "RotaryPositionalEmbedding",
    "Silu",
]
