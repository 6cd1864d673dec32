"""The transformer."""

from descend.models import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]
