"""Attention and encodings of positions."""

from descend.lbann.modules.transformer import attention, attention_allsubgraph, encoding
from descend.zoo.modules import LearnedInputEncoding, MultiheadAttention, PositionalEncoding, RotaryPositionalEmbedding

__all__ = [
    "LearnedInputEncoding",
    "MultiheadAttention",
    "PositionalEncoding",
    "RotaryPositionalEmbedding",
    "attention",
    "attention_allsubgraph",
    "encoding",
]
