"""Layers of the transformer: attention and a map of each position, each behind a shortcut and a normalization.

    encoder    x ← norm(x + attention(x, x, x));  x ← norm(x + f(x))
    decoder    the same with attention(x, m, m) to a memory m between the two

f is W₂ relu(W₁ x + b₁) + b₂ of each position; what is added to x is dropped with a probability in training.

Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    ConstantInitializer,
    Dropout,
    LayerNorm,
    NoOptimizer,
    Relu,
    ValueInitializer,
    Weights,
    WeightsLayer,
)
from descend.zoo.modules import ChannelwiseFullyConnectedModule, Module, MultiheadAttention

if TYPE_CHECKING:
    from descend.graph import Layer

__all__ = ["PositionalEncoding", "TransformerDecoderLayer", "TransformerEncoderLayer"]


class _Shortcut(Module):
    """norm(x + dropped y), with a scale and a bias for each feature."""

    def __init__(self, dropout: float, name: str) -> None:
        super().__init__(name)
        self.dropout = dropout
        self.weights = [
            Weights(ConstantInitializer(1.0), name=f"{name}_norm_scale"),
            Weights(ConstantInitializer(), name=f"{name}_norm_bias"),
        ]

    def forward(self, x: Layer, y: Layer) -> Layer:
        if self.dropout:
            y = Dropout(y, keep_prob=1 - self.dropout, name=self.label("drop"))
        total = Add(x, y, name=self.label("sum"))
        return LayerNorm(total, start_dim=1, scale=True, bias=True, weights=self.weights, name=self.label("norm"))


class _Feedforward(Module):
    """W₂ relu(W₁ x + b₁) + b₂ of each position."""

    def __init__(self, size: int, inner: int, dropout: float, name: str) -> None:
        super().__init__(name)
        self.dropout = dropout
        self.first = ChannelwiseFullyConnectedModule(inner, bias=True, activation=Relu, name=f"{name}_fc1")
        self.second = ChannelwiseFullyConnectedModule(size, bias=True, name=f"{name}_fc2")

    def forward(self, x: Layer) -> Layer:
        x = self.first(x)
        return self.second(Dropout(x, keep_prob=1 - self.dropout, name=self.label("drop")) if self.dropout else x)


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself, and a map of each position.

    Args:
        embed_dim: Size of each position.
        num_heads: Heads of the attention.
        feedforward_dim: Size between the two maps.
        dropout: Probability that an entry is dropped in training, of attention as well.
        name: `transformerencoderlayer<N>` without one.
    """

    prefix: ClassVar[str] = "transformerencoderlayer"

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        dropout: float = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.attention = MultiheadAttention(embed_dim, num_heads, dropout, name=f"{self.name}_attention")
        self.feedforward = _Feedforward(embed_dim, feedforward_dim, dropout, f"{self.name}_feedforward")
        self.shortcuts = [_Shortcut(dropout, f"{self.name}_shortcut{i}") for i in (1, 2)]

    def forward(self, x: Layer, mask: Layer | None = None) -> Layer:
        """Shapes: x (positions, embed_dim), and so the result; mask as in MultiheadAttention."""
        x = self.shortcuts[0](x, self.attention(x, x, x, mask))
        return self.shortcuts[1](x, self.feedforward(x))


class TransformerDecoderLayer(Module):
    """Attention of a sequence to itself and to a memory, and a map of each position; arguments as in the encoder's."""

    prefix: ClassVar[str] = "transformerdecoderlayer"

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        dropout: float = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.attentions = [
            MultiheadAttention(embed_dim, num_heads, dropout, name=f"{self.name}_attention{i}") for i in (1, 2)
        ]
        self.feedforward = _Feedforward(embed_dim, feedforward_dim, dropout, f"{self.name}_feedforward")
        self.shortcuts = [_Shortcut(dropout, f"{self.name}_shortcut{i}") for i in (1, 2, 3)]

    def forward(
        self, x: Layer, memory: Layer, source_mask: Layer | None = None, target_mask: Layer | None = None
    ) -> Layer:
        """Attend to x under target_mask and to the memory under source_mask.

        Shapes: x (positions, embed_dim), and so the result; memory (other positions, any size).
        """
        own, other = self.attentions
        x = self.shortcuts[0](x, own(x, x, x, target_mask))
        x = self.shortcuts[1](x, other(x, memory, memory, source_mask))
        return self.shortcuts[2](x, self.feedforward(x))


class PositionalEncoding(Module):
    """x plus waves of its place p in the sequence: entry 2i gets sin(p / 10000^(2i / size)), entry 2i + 1 the cosine.

    Args:
        embed_dim: Size of each position.
        dropout: Probability that an entry of the sum is dropped in training.
        name: `positionalencoding<N>` without one.

    Source: Vaswani et al. 2017, section 3.5.
    """

    prefix: ClassVar[str] = "positionalencoding"

    def __init__(self, embed_dim: int, dropout: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        self.embed_dim, self.dropout = embed_dim, dropout
        self._lines: dict[int, Weights] = {}

    def forward(self, x: Layer, length: int) -> Layer:
        """Shapes: x (length, embed_dim), and so the result."""
        if length < 1:
            raise ConfigurationError(f"PositionalEncoding '{self.name}' has length {length}; it must be at least 1")
        dims = [length, self.embed_dim]
        waves = WeightsLayer(dims=dims, weights=[self._waves(length)], name=self.label("waves"))
        y = Add(x, waves, name=self.label())
        return Dropout(y, keep_prob=1 - self.dropout, name=self.label("drop")) if self.dropout else y

    def _waves(self, length: int) -> Weights:
        if length not in self._lines:
            size = self.embed_dim
            values = tuple(
                (math.cos if i % 2 else math.sin)(p / 10000 ** (i // 2 * 2 / size))
                for p in range(length)
                for i in range(size)
            )
            name = f"{self.name}_waves{length}"
            self._lines[length] = Weights(ValueInitializer(values_d=values), optimizer=NoOptimizer(), name=name)
        return self._lines[length]
