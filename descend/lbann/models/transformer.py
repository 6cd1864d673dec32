"""The transformer."""

from descend.zoo.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]
