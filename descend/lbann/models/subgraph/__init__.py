"""Models whose attention heads lie on grids of processes: the same classes, given `branches=`."""

from descend.zoo.transformer import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]
