"""Attention: each position of a sequence takes a mean of others, weighted by how well they match."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    ChannelwiseFullyConnected,
    ChannelwiseSoftmax,
    Dropout,
    GlorotNormalInitializer,
    MatMul,
    Reshape,
    Scale,
    TensorPermute,
    Weights,
)
from descend.graph import ConstantInitializer as Zeros
from descend.zoo.modules.module import Module

if TYPE_CHECKING:
    from descend.graph import Layer

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention in several heads.

        head_i = softmax(Q_i K_iᵀ / √d (+ mask)) V_i        Q_i, K_i, V_i: parts of size d = embed_dim / num_heads
        y = W_o [head_1, ..., head_h] + b_o                 Q = W_q queries + b_q, and so K and V

    Args:
        embed_dim: Size of each position.
        num_heads: Number of heads; divides embed_dim.
        dropout: Probability that a weight of the mean is dropped in training.
        bias: Whether the maps have biases.
        name: `multiheadattention<N>` without one.

    Attributes:
        query_weights: Matrix and bias of W_q; key_weights, value_weights and output_weights likewise. They may be
            replaced before the first call.

    Source: Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762
    """

    prefix: ClassVar[str] = "multiheadattention"

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, name: str | None = None
    ) -> None:
        super().__init__(name)
        if num_heads < 1 or embed_dim % num_heads:
            raise ConfigurationError(
                f"MultiheadAttention '{self.name}' has embed_dim {embed_dim} and num_heads {num_heads}; "
                "the heads must divide it"
            )
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"MultiheadAttention '{self.name}' has dropout {dropout!r}; expected 0 to below 1")
        self.embed_dim, self.num_heads, self.dropout, self.bias = embed_dim, num_heads, dropout, bias
        self.query_weights, self.key_weights, self.value_weights, self.output_weights = (
            self._affine(part) for part in ("query", "key", "value", "output")
        )

    def _affine(self, part: str) -> list[Weights]:
        matrix = Weights(GlorotNormalInitializer(), name=f"{self.name}_{part}_matrix")
        return [matrix, Weights(Zeros(), name=f"{self.name}_{part}_bias")] if self.bias else [matrix]

    def _map(self, x: Layer, weights: list[Weights], part: str) -> Layer:
        return ChannelwiseFullyConnected(
            x, weights=weights, output_channel_dims=self.embed_dim, bias=self.bias, name=self.label(part)
        )

    def _heads(self, x: Layer, weights: list[Weights], part: str) -> Layer:
        """(heads, positions, d) from (positions, size)."""
        dims = [-1, self.num_heads, self.embed_dim // self.num_heads]
        parts = Reshape(self._map(x, weights, part), dims=dims, name=self.label(f"{part}_parts"))
        return TensorPermute(parts, axes=[1, 0, 2], name=self.label(f"{part}_heads"))

    def forward(self, queries: Layer, keys: Layer, values: Layer, mask: Layer | None = None) -> Layer:
        """Attend from each query to all keys.

        Args:
            queries: (number of queries, any size).
            keys: (number of keys, any size).
            values: As many positions as there are keys, of any size.
            mask: (heads, queries, keys), added before the softmax; very negative where nothing is to be seen.

        Returns:
            (number of queries, embed_dim).
        """
        q = self._heads(queries, self.query_weights, "query")
        k = self._heads(keys, self.key_weights, "key")
        v = self._heads(values, self.value_weights, "value")
        q = Scale(q, constant=1 / math.sqrt(self.embed_dim // self.num_heads), name=self.label("query_scaled"))
        match = MatMul(q, k, transpose_b=True, name=self.label("match"))
        if mask is not None:
            match = Add(match, mask, name=self.label("masked"))
        share = ChannelwiseSoftmax(match, dim=-1, single_dim_mode=True, name=self.label("share"))
        if self.dropout:
            share = Dropout(share, keep_prob=1 - self.dropout, name=self.label("dropout"))
        heads = TensorPermute(MatMul(share, v, name=self.label("mean")), axes=[1, 0, 2], name=self.label("joined"))
        line = Reshape(heads, dims=[-1, self.embed_dim], name=self.label("line"))
        return self._map(line, self.output_weights, "output")
