"""Encodings of positions."""

from descend.modules import LearnedInputEncoding, PositionalEncoding, RotaryPositionalEmbedding

__all__ = ["LearnedInputEncoding", "PositionalEncoding", "RotaryPositionalEmbedding"]
