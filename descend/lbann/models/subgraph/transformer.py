"""The transformer whose attention heads lie on grids of processes."""

from descend.zoo.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]
