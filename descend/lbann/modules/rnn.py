"""Recurrent cells."""

from descend.zoo.modules import GRU, ChannelwiseGRU, LSTMCell

__all__ = ["GRU", "ChannelwiseGRU", "LSTMCell"]
