"""Encodings of positions."""

from descend.zoo.modules import LearnedInputEncoding, PositionalEncoding, RotaryPositionalEmbedding

__all__ = ["LearnedInputEncoding", "PositionalEncoding", "RotaryPositionalEmbedding"]
