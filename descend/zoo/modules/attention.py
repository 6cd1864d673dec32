"""Attention: each position of a sequence gets the mean of values, weighted by the softmax of query-key products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    ChannelwiseFullyConnected,
    ChannelwiseSoftmax,
    Concatenation,
    Dropout,
    GlorotNormalInitializer,
    Identity,
    MatMul,
    Reshape,
    Scale,
    Slice,
    TensorPermute,
    Weights,
)
from descend.graph import ConstantInitializer as Zeros
from descend.zoo.modules.module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.graph import Layer
    from descend.zoo.modules.encoding import RotaryPositionalEmbedding

__all__ = ["MultiheadAttention", "MultiheadAttentionAllsubGraph"]

_PARTS = ("query", "key", "value")


class MultiheadAttention(Module):
    """Attention in several heads.

        head_i = softmax(Q_i K_iᵀ / √d (+ mask)) V_i        Q_i, K_i, V_i: parts of size d = embed_dim / num_heads
        y = W_o [head_1, ..., head_h] + b_o                 Q = W_q queries + b_q, and so K and V

    Args:
        embed_dim: Size of each position.
        num_heads: Number of heads; divides embed_dim.
        self_attention: Whether queries, keys and values are one layer; W_q, W_k and W_v are then one matrix, its
            rows in this order.
        batch_heads: Whether all heads are one stack of matrices; else each has layers of its own. The arithmetic is
            the same.
        dropout: Probability that a weight of the mean is dropped in training.
        subgraph_branches: Where it is not 0, heads have layers of their own, tagged with so many grids in turn.
        bias: Whether the maps have biases; they have without it.
        positional_encoding: Turns queries and keys by their places; of the size of one head.
        name: `multiheadattention<N>` without one.

    Attributes:
        query_weights: Matrix and bias of W_q; key_weights, value_weights and output_weights likewise, and qkv_weights
            of the joint matrix of self-attention. They may be replaced before the first call.

    Source: Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762
    """

    prefix: ClassVar[str] = "multiheadattention"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        self_attention: bool = False,
        batch_heads: bool = True,
        dropout: float = 0.0,
        subgraph_branches: int = 0,
        bias: bool | None = None,
        positional_encoding: RotaryPositionalEmbedding | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if num_heads < 1 or embed_dim % num_heads:
            raise ConfigurationError(
                f"MultiheadAttention '{self.name}' has embed_dim {embed_dim} and num_heads {num_heads}; "
                "the heads must divide it"
            )
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"MultiheadAttention '{self.name}' has dropout {dropout!r}; expected 0 to below 1")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.self_attention, self.batch_heads, self.dropout = self_attention, batch_heads, dropout
        self.subgraph_branches, self.bias = subgraph_branches, bias is not False
        self.positional_encoding = positional_encoding
        if positional_encoding is not None and positional_encoding.size != self.head_dim:
            raise ConfigurationError(
                f"MultiheadAttention '{self.name}' has heads of size {self.head_dim} and a positional_encoding of size "
                f"{positional_encoding.size}; expected one of size {self.head_dim}"
            )
        if self_attention:
            self.qkv_weights = self._affine("qkv")
        else:
            self.query_weights, self.key_weights, self.value_weights = map(self._affine, ("query", "key", "value"))
        self.output_weights = self._affine("output")

    def _affine(self, part: str) -> list[Weights]:
        matrix = Weights(GlorotNormalInitializer(), name=f"{self.name}_{part}_matrix")
        return [matrix, Weights(Zeros(), name=f"{self.name}_{part}_bias")] if self.bias else [matrix]

    def _map(self, x: Layer, weights: list[Weights], part: str, maps: int = 1) -> Layer:
        size = maps * self.embed_dim
        return ChannelwiseFullyConnected(
            x, weights=weights, output_channel_dims=size, bias=self.bias, name=self.label(part)
        )

    def forward(
        self, queries: Layer, keys: Layer | None = None, values: Layer | None = None, mask: Layer | None = None
    ) -> Layer:
        """Attend from each query to all keys.

        Args:
            queries: (number of queries, any size).
            keys: (number of keys, any size); the queries without any.
            values: As many positions as there are keys, of any size; the keys without any.
            mask: (heads, queries, keys), added before the softmax; very negative where a key is masked.

        Returns:
            (number of queries, embed_dim).

        Raises:
            ConfigurationError: self_attention was asked for, and keys or values are other layers than the queries.
        """
        keys = queries if keys is None else keys
        values = keys if values is None else values
        parts = [self._parts(x, part) for x, part in zip(self._maps(queries, keys, values), _PARTS, strict=True)]
        if self.positional_encoding is not None:
            parts[:2] = [self.positional_encoding(x, self.num_heads) for x in parts[:2]]
        parts[0] = Scale(parts[0], constant=1 / math.sqrt(self.head_dim), name=self.label("query_scaled"))
        whole = self.batch_heads and not self.subgraph_branches
        line = self._stacked(parts, mask) if whole else self._apart(parts, mask)
        return self._map(line, self.output_weights, "output")

    def _maps(self, queries: Layer, keys: Layer, values: Layer) -> list[Layer]:
        """Q, K and V, each (positions, embed_dim)."""
        if not self.self_attention:
            given = (
                (queries, self.query_weights, "query"),
                (keys, self.key_weights, "key"),
                (values, self.value_weights, "value"),
            )
            return [self._map(*one) for one in given]
        if keys is not queries or values is not queries:
            raise ConfigurationError(
                f"MultiheadAttention '{self.name}' has self_attention, and its keys or values are other layers than "
                "its queries; give it one layer, or leave self_attention out"
            )
        joint = self._map(queries, self.qkv_weights, "qkv", maps=3)
        points = [i * self.embed_dim for i in range(4)]
        cut = Slice(joint, axis=1, slice_points=points, name=self.label("qkv_slice"))
        return [Identity(cut, name=self.label(part)) for part in _PARTS]

    def _parts(self, x: Layer, part: str) -> Layer:
        """(positions, heads, d) from (positions, embed_dim)."""
        return Reshape(x, dims=[-1, self.num_heads, self.head_dim], name=self.label(f"{part}_parts"))

    def _stacked(self, parts: list[Layer], mask: Layer | None) -> Layer:
        """All heads as one stack of matrices; (queries, embed_dim)."""
        stacks = [
            TensorPermute(x, axes=[1, 0, 2], name=self.label(f"{part}_heads"))
            for x, part in zip(parts, _PARTS, strict=True)
        ]
        heads = TensorPermute(self._attend(stacks, mask, ""), axes=[1, 0, 2], name=self.label("joined"))
        return Reshape(heads, dims=[-1, self.embed_dim], name=self.label("line"))

    def _apart(self, parts: list[Layer], mask: Layer | None) -> Layer:
        """Each head by itself; (queries, embed_dim)."""
        each = [self._sliced(x, part, axis=1) for x, part in zip(parts, _PARTS, strict=True)]
        masks = [None] * self.num_heads if mask is None else self._sliced(mask, "mask", axis=0)
        means: list[Layer] = []
        for head, own in enumerate(zip(*each, strict=True)):
            tag = head % self.subgraph_branches + 1 if self.subgraph_branches else None
            rows = [
                TensorPermute(x, axes=[1, 0, 2], grid_tag=tag, name=self.label(f"{part}_head{head + 1}"))
                for x, part in zip(own, _PARTS, strict=True)
            ]
            mean = self._attend(rows, masks[head], f"_head{head + 1}", tag)
            means.append(Reshape(mean, dims=[-1, self.head_dim], name=self.label(f"line_head{head + 1}")))
        return Concatenation(means, axis=1, name=self.label("line"))

    def _sliced(self, x: Layer, part: str, axis: int) -> list[Layer]:
        """One entry of an axis for each head."""
        cut = Slice(x, axis=axis, slice_points=range(self.num_heads + 1), name=self.label(f"{part}_slice"))
        return [Identity(cut, name=self.label(f"{part}_slice{head + 1}")) for head in range(self.num_heads)]

    def _attend(self, qkv: Sequence[Layer], mask: Layer | None, which: str, tag: int | None = None) -> Layer:
        """softmax(Q Kᵀ + mask) V of (heads, positions, d) each."""
        q, k, v = qkv
        match = MatMul(q, k, transpose_b=True, grid_tag=tag, name=self.label(f"match{which}"))
        if mask is not None:
            match = Add(match, mask, grid_tag=tag, name=self.label(f"masked{which}"))
        share = ChannelwiseSoftmax(match, dim=-1, single_dim_mode=True, grid_tag=tag, name=self.label(f"share{which}"))
        if self.dropout:
            share = Dropout(share, keep_prob=1 - self.dropout, grid_tag=tag, name=self.label(f"dropout{which}"))
        return MatMul(share, v, grid_tag=tag, name=self.label(f"mean{which}"))


# ---- attention whose heads are laid on grids of processes from their maps on, under the name of LBANN's file
#
# On one process a grid changes nothing, so this is `MultiheadAttention` with `subgraph_branches`.


class MultiheadAttentionAllsubGraph(MultiheadAttention):
    """Attention in several heads, each on one of `branches` grids in turn; the arithmetic is `MultiheadAttention`'s.

    Args:
        embed_dim: Size of each position.
        num_heads: Number of heads; divides embed_dim.
        branches: Number of grids; with 0 there are none.
        self_attention: As in MultiheadAttention, and so dropout, bias, positional_encoding and name.
        dropout: Probability that a weight of the mean is dropped in training.
        bias: Whether the maps have biases; they have without it.
        positional_encoding: Turns queries and keys by their places.
        name: `multiheadattention<N>` without one.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        branches: int = 0,
        self_attention: bool = False,
        dropout: float = 0.0,
        bias: bool | None = None,
        positional_encoding: RotaryPositionalEmbedding | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            self_attention=self_attention,
            dropout=dropout,
            subgraph_branches=branches,
            bias=bias,
            positional_encoding=positional_encoding,
            name=name,
        )
