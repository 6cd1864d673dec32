"""Positional encodings: those added to the input, and rotary ones of queries and keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    ChannelwiseFullyConnected,
    Dropout,
    Multiply,
    NormalInitializer,
    Reshape,
    Slice,
    Tessellate,
    Weights,
    WeightsLayer,
)
from descend.zoo.modules.module import Module, fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.graph import Layer

__all__ = ["LearnedInputEncoding", "PositionalEncoding", "RotaryPositionalEmbedding"]


def _check_length(module: Module, length: int, longest: int | None = None) -> None:
    if length < 1 or (longest is not None and length > longest):
        most = f" and at most {longest}" if longest is not None else ""
        raise ConfigurationError(
            f"{type(module).__name__} '{module.name}' has length {length}; it must be at least 1{most}"
        )


def _dropped(module: Module, x: Layer, dropout: float) -> Layer:
    return Dropout(x, keep_prob=1 - dropout, name=module.label("drop")) if dropout else x


class PositionalEncoding(Module):
    """x plus waves of its place p in the sequence: entry 2i gets sin(p / 10000^(2i / size)), entry 2i + 1 the cosine.

    Args:
        embed_dim: Size of each position.
        dropout: Probability that an entry of the sum is dropped in training.
        name: `positionalencoding<N>` without one.

    Source: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
    """

    prefix: ClassVar[str] = "positionalencoding"

    def __init__(self, embed_dim: int, dropout: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        self.embed_dim, self.dropout = embed_dim, dropout
        self._lines: dict[int, Weights] = {}

    def forward(self, x: Layer, length: int) -> Layer:
        """Shapes: x (length, embed_dim), and so the result."""
        _check_length(self, length)
        dims = [length, self.embed_dim]
        waves = WeightsLayer(dims=dims, weights=[self._waves(length)], name=self.label("waves"))
        return _dropped(self, Add(x, waves, name=self.label()), self.dropout)

    def _waves(self, length: int) -> Weights:
        if length not in self._lines:
            values = (
                (math.cos if i % 2 else math.sin)(p / 10000 ** (i // 2 * 2 / self.embed_dim))
                for p in range(length)
                for i in range(self.embed_dim)
            )
            self._lines[length] = fixed(values, f"{self.name}_waves{length}")
        return self._lines[length]


class LearnedInputEncoding(Module):
    """x plus a trained vector for each place in the sequence.

    Args:
        embed_dim: Size of each position.
        max_sequence_length: Places that have a vector.
        dropout: Probability that an entry of the sum is dropped in training.
        name: `learnedinputencoding<N>` without one.

    Attributes:
        weights: (max_sequence_length, embed_dim), which start as N(0, 0.02²).

    Source: Gehring et al. 2017, https://arxiv.org/abs/1705.03122; the start is that of GPT and BERT.
    """

    prefix: ClassVar[str] = "learnedinputencoding"

    def __init__(self, embed_dim: int, max_sequence_length: int, dropout: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        self.embed_dim, self.max_sequence_length, self.dropout = embed_dim, max_sequence_length, dropout
        self.weights = Weights(NormalInitializer(standard_deviation=0.02), name=f"{self.name}_places")

    def forward(self, x: Layer, length: int) -> Layer:
        """Shapes: x (length, embed_dim), and so the result."""
        _check_length(self, length, self.max_sequence_length)
        dims = [self.max_sequence_length, self.embed_dim]
        places = WeightsLayer(dims=dims, weights=[self.weights], name=self.label("places"))
        if length < self.max_sequence_length:
            places = Slice(places, slice_points=[0, length], name=self.label("first_places"))
        return _dropped(self, Add(x, places, name=self.label()), self.dropout)


class RotaryPositionalEmbedding(Module):
    """Pairs of entries of each position p turned by the angles p θᵢ, θᵢ = base^(−2i / size).

        y₂ᵢ = x₂ᵢ cos pθᵢ − x₂ᵢ₊₁ sin pθᵢ        y₂ᵢ₊₁ = x₂ᵢ₊₁ cos pθᵢ + x₂ᵢ sin pθᵢ

    Args:
        size: Entries of each position that turn as one: of each head in attention. Even.
        length: Positions of the sequence.
        base: How slow the slowest pair turns.
        halves: Whether entry i is paired with entry i + size / 2, as GPT-NeoX and Llama do, and not with its neighbour.
        name: `rotarypositionalembedding<N>` without one.

    Source: Su et al. 2021, equation 34, https://arxiv.org/abs/2104.09864
    """

    prefix: ClassVar[str] = "rotarypositionalembedding"

    def __init__(
        self, size: int, length: int, base: float = 10000.0, halves: bool = False, name: str | None = None
    ) -> None:
        super().__init__(name)
        _check_length(self, length)
        if size < 2 or size % 2:
            raise ConfigurationError(f"RotaryPositionalEmbedding '{self.name}' has size {size}; expected an even one")
        self.size, self.length, self.base, self.halves = size, length, base, halves
        self._cosines = fixed(self._table(math.cos), f"{self.name}_cosines")
        self._sines = fixed(self._table(math.sin), f"{self.name}_sines")
        self._turn = fixed(self._quarter_turn(), f"{self.name}_turn")

    def _pairs(self) -> list[tuple[int, int]]:
        half = self.size // 2
        return [(i, i + half) if self.halves else (2 * i, 2 * i + 1) for i in range(half)]

    def _table(self, function: Callable[[float], float]) -> list[float]:
        angle = [0.0] * self.size
        for i, pair in enumerate(self._pairs()):
            for entry in pair:
                angle[entry] = self.base ** (-2 * i / self.size)
        return [function(p * one) for p in range(self.length) for one in angle]

    def _quarter_turn(self) -> list[float]:
        """The matrix of a quarter turn of each pair, (a, b) to (−b, a), column by column."""
        columns = [[0.0] * self.size for _ in range(self.size)]
        for first, second in self._pairs():
            columns[second][first] = -1.0
            columns[first][second] = 1.0
        return [entry for column in columns for entry in column]

    def forward(self, x: Layer, heads: int = 1) -> Layer:
        """Shapes: x (length, heads, size), and so the result; without heads (length, size) too."""
        dims = [self.length, heads, self.size]
        x = Reshape(x, dims=dims, name=self.label("parts"))
        lines = Reshape(x, dims=[-1, self.size], name=self.label("lines"))
        turned = ChannelwiseFullyConnected(
            lines, output_channel_dims=self.size, bias=False, weights=[self._turn], name=self.label("turn")
        )
        cosines, sines = (
            self._spread(table, dims, part) for table, part in ((self._cosines, "cosines"), (self._sines, "sines"))
        )
        across = Multiply(Reshape(turned, dims=dims, name=self.label("turned")), sines, name=self.label("across"))
        return Add(Multiply(x, cosines, name=self.label("along")), across, name=self.label())

    def _spread(self, table: Weights, dims: list[int], part: str) -> Layer:
        one = WeightsLayer(dims=[self.length, self.size], weights=[table], name=self.label(part))
        return Tessellate(
            Reshape(one, dims=[self.length, 1, self.size], name=self.label(f"{part}_line")),
            dims=dims,
            name=self.label(f"{part}_heads"),
        )
