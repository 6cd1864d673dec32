"""Attention whose heads are laid on grids of processes from their maps on, under the name of LBANN's file.

On one process a grid changes nothing, so this is `MultiheadAttention` with `subgraph_branches`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.zoo.modules.attention import MultiheadAttention

if TYPE_CHECKING:
    from descend.zoo.modules.encoding import RotaryPositionalEmbedding

__all__ = ["MultiheadAttentionAllsubGraph"]


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
