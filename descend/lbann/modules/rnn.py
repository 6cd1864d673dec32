"""Recurrent cells."""

from descend.modules import GRU, ChannelwiseGRU, LSTMCell

__all__ = ["GRU", "ChannelwiseGRU", "LSTMCell"]
