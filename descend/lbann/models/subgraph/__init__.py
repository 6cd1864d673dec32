"""Models whose attention heads lie on grids of processes: the same classes, given `branches=`."""

from descend.models import Transformer, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]
