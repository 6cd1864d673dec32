"""Modules: a few layers that are made anew in each call, with weights that all calls share."""

from descend.zoo.modules.attention import MultiheadAttention
from descend.zoo.modules.convolution import Convolution2dModule, Convolution3dModule, ConvolutionModule
from descend.zoo.modules.dense import ChannelwiseFullyConnectedModule, FullyConnectedModule
from descend.zoo.modules.module import Module
from descend.zoo.modules.recurrent import GRU, LSTMCell

__all__ = [
    "GRU",
    "ChannelwiseFullyConnectedModule",
    "Convolution2dModule",
    "Convolution3dModule",
    "ConvolutionModule",
    "FullyConnectedModule",
    "LSTMCell",
    "Module",
    "MultiheadAttention",
]
