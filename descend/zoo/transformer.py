"""The transformer: attention and a position-wise feed-forward network, each with a residual connection and a norm.

    encoder    x ← norm(x + attention(x, x, x));  x ← norm(x + f(x))
    decoder    the same with attention(x, m, m) to a memory m between the two

With `norm_first`, x ← x + attention(norm(x)) and so on, as GPT has it. f is W₂ relu(W₁ x + b₁) + b₂ of each position;
what is added to x is dropped with a probability in training.

Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762; Xiong et al. 2020,
https://arxiv.org/abs/2002.04745, for norm_first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    Constant,
    ConstantInitializer,
    Dropout,
    LayerNorm,
    MatMul,
    OperatorLayer,
    Relu,
    Reshape,
    Subtract,
    Tessellate,
    Weights,
    WeightsLayer,
    ops,
)
from descend.zoo.modules import ChannelwiseFullyConnectedModule, Module, MultiheadAttention, PositionalEncoding
from descend.zoo.modules.module import fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.graph import Layer
    from descend.zoo.modules.module import Activation

__all__ = ["Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer", "causal_mask"]

_UNSEEN = -1e9  # added to what must not be seen: e to it is 0, and it is finite


class Norm(Module):
    """LayerNorm of each position, with a scale and a bias for each feature."""

    def __init__(self, epsilon: float, name: str) -> None:
        super().__init__(name)
        self.epsilon = epsilon
        self.weights = [
            Weights(ConstantInitializer(1.0), name=f"{name}_scale"),
            Weights(ConstantInitializer(), name=f"{name}_bias"),
        ]

    def forward(self, x: Layer) -> Layer:
        """Shapes: x (positions, size), and so the result."""
        fields: dict[str, Any] = {"start_dim": 1, "scale": True, "bias": True, "epsilon": self.epsilon}
        return LayerNorm(x, weights=self.weights, name=self.label(), **fields)


class _Shortcut(Module):
    """norm(x + dropped f(x)), or x + dropped f(norm(x))."""

    def __init__(self, dropout: float, epsilon: float, norm_first: bool, name: str) -> None:
        super().__init__(name)
        self.dropout, self.norm_first = dropout, norm_first
        self.norm = Norm(epsilon, f"{name}_norm")

    def forward(self, x: Layer, f: Callable[[Layer], Layer]) -> Layer:
        y = f(self.norm(x) if self.norm_first else x)
        if self.dropout:
            y = Dropout(y, keep_prob=1 - self.dropout, name=self.label("drop"))
        total = Add(x, y, name=self.label("sum"))
        return total if self.norm_first else self.norm(total)


class _Feedforward(Module):
    """W₂ relu(W₁ x + b₁) + b₂ of each position; relu or another activation."""

    def __init__(self, size: int, inner: int, dropout: float, activation: Activation, name: str) -> None:
        super().__init__(name)
        self.dropout = dropout
        self.first = ChannelwiseFullyConnectedModule(inner, bias=True, activation=activation, name=f"{name}_fc1")
        self.second = ChannelwiseFullyConnectedModule(size, bias=True, name=f"{name}_fc2")

    def forward(self, x: Layer) -> Layer:
        x = self.first(x)
        return self.second(Dropout(x, keep_prob=1 - self.dropout, name=self.label("drop")) if self.dropout else x)


class _TransformerLayer(Module):
    """What encoder and decoder have in common: so many attentions, one feedforward, and a shortcut around each."""

    attentions_count: ClassVar[int]

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        dropout: float = 0.1,
        name: str | None = None,
        activation: Activation = Relu,
        norm_first: bool = False,
        epsilon: float = 1e-5,
        attention_dropout: float | None = None,
        inner_dropout: float | None = None,
        branches: int = 0,
    ) -> None:
        super().__init__(name)
        dropped = dropout if attention_dropout is None else attention_dropout
        self.attentions = [
            MultiheadAttention(
                embed_dim,
                num_heads,
                dropout=dropped,
                subgraph_branches=branches,
                name=f"{self.name}_attention{suffix}",
            )
            for suffix in _numbers(self.attentions_count)
        ]
        inner = dropout if inner_dropout is None else inner_dropout
        self.feedforward = _Feedforward(embed_dim, feedforward_dim, inner, activation, f"{self.name}_feedforward")
        self.shortcuts = [
            _Shortcut(dropout, epsilon, norm_first, f"{self.name}_shortcut{i}")
            for i in range(1, self.attentions_count + 2)
        ]


def _numbers(count: int) -> list[str]:
    return [""] if count == 1 else [str(i) for i in range(1, count + 1)]


class TransformerEncoderLayer(_TransformerLayer):
    """Attention of a sequence to itself, and a map of each position.

    Args:
        embed_dim: Size of each position.
        num_heads: Heads of the attention.
        feedforward_dim: Size between the two maps.
        dropout: Probability that an entry is dropped in training, of attention as well.
        name: `transformerencoderlayer<N>` without one.
        activation: Between the two maps: a kind of layer, or a function of a layer and `name`.
        norm_first: Whether norms come before attention and maps, and not after the sums.
        epsilon: ε of the norms.
        attention_dropout: Probability for attention alone; `dropout` without it.
        inner_dropout: Probability between the two maps; `dropout` without it.
        branches: As subgraph_branches in MultiheadAttention.
    """

    prefix: ClassVar[str] = "transformerencoderlayer"
    attentions_count: ClassVar[int] = 1

    def forward(self, x: Layer, mask: Layer | None = None) -> Layer:
        """Shapes: x (positions, embed_dim), and so the result; mask as in MultiheadAttention."""
        x = self.shortcuts[0](x, lambda own: self.attentions[0](own, own, own, mask))
        return self.shortcuts[1](x, self.feedforward)


class TransformerDecoderLayer(_TransformerLayer):
    """Attention of a sequence to itself and to a memory, and a map of each position; arguments as in the encoder's."""

    prefix: ClassVar[str] = "transformerdecoderlayer"
    attentions_count: ClassVar[int] = 2

    def forward(
        self, x: Layer, memory: Layer, source_mask: Layer | None = None, target_mask: Layer | None = None
    ) -> Layer:
        """Attend to x under target_mask and to the memory under source_mask.

        Shapes: x (positions, embed_dim), and so the result; memory (other positions, any size).
        """
        x = self.shortcuts[0](x, lambda own: self.attentions[0](own, own, own, target_mask))
        x = self.shortcuts[1](x, lambda own: self.attentions[1](own, memory, memory, source_mask))
        return self.shortcuts[2](x, self.feedforward)


def causal_mask(length: int, heads: int, name: str) -> Layer:
    """(heads, length, length): 0 where the key's place is not behind the query's, and −10⁹ where it is.

    It is worked out from the places, so that its text grows with the length and not with its square.
    """
    places = WeightsLayer(dims=[length, 1], weights=[fixed(range(length), f"{name}_places")], name=f"{name}_line")
    ones = Constant(value=1.0, num_neurons=[length, 1], name=f"{name}_ones")
    queries = MatMul(places, ones, transpose_b=True, name=f"{name}_queries")
    keys = MatMul(ones, places, transpose_b=True, name=f"{name}_keys")
    chain = [ops.GreaterConstant(constant=0.0), ops.Scale(constant=_UNSEEN)]
    behind = OperatorLayer(Subtract(keys, queries, name=f"{name}_lead"), ops=chain, name=f"{name}_square")
    square = Reshape(behind, dims=[1, length, length], name=f"{name}_one_head")
    return Tessellate(square, dims=[heads, length, length], name=name)


class Transformer(Module):
    """An encoder of a source and a decoder of a target, with encodings of places.

    Args:
        hidden_size: Size of each position.
        num_heads: Heads of each attention.
        num_encoder_layers: Layers of the encoder.
        num_decoder_layers: Layers of the decoder.
        feedforward_size: Size between the two maps; 4 hidden_size without one.
        dropout: Probability that an entry is dropped in training.
        name: `transformer<N>` without one.
        positional_encoding: A module that is called with a sequence and its length; PositionalEncoding without one.
        activation: As in TransformerEncoderLayer; so norm_first and epsilon.
        norm_first: See there; encoder and decoder then end in a norm.
        epsilon: See there.
        branches: See there.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    """

    prefix: ClassVar[str] = "transformer"

    def __init__(
        self,
        hidden_size: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        feedforward_size: int | None = None,
        dropout: float = 0.1,
        name: str | None = None,
        positional_encoding: Module | None = None,
        activation: Activation = Relu,
        norm_first: bool = False,
        epsilon: float = 1e-5,
        branches: int = 0,
    ) -> None:
        super().__init__(name)
        self.hidden_size, self.num_heads = hidden_size, num_heads
        inner = 4 * hidden_size if feedforward_size is None else feedforward_size
        sizes = (hidden_size, num_heads, inner, dropout)
        self.positional_encoding = positional_encoding or PositionalEncoding(
            hidden_size, dropout, name=f"{self.name}_positions"
        )
        options: dict[str, Any] = {
            "activation": activation,
            "norm_first": norm_first,
            "epsilon": epsilon,
            "branches": branches,
        }
        self.encoder = [
            TransformerEncoderLayer(*sizes, name=f"{self.name}_encoder{i + 1}", **options)
            for i in range(num_encoder_layers)
        ]
        self.decoder = [
            TransformerDecoderLayer(*sizes, name=f"{self.name}_decoder{i + 1}", **options)
            for i in range(num_decoder_layers)
        ]
        self.last = [Norm(epsilon, f"{self.name}_{part}_norm") for part in ("encoder", "decoder")] if norm_first else []

    def forward(self, source: Layer, source_length: int, target: Layer, target_length: int) -> Layer:
        """The decoder's output; each of its positions sees the whole source, and the target up to itself.

        Shapes: source (source_length, hidden_size), target (target_length, hidden_size), and so the result.

        Raises:
            ConfigurationError: a length is not at least 1.
        """
        if min(source_length, target_length) < 1:
            raise ConfigurationError(
                f"Transformer '{self.name}' has lengths {source_length} and {target_length}; they must be at least 1"
            )
        memory = self.positional_encoding(source, source_length)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.positional_encoding(target, target_length)
        mask = causal_mask(target_length, self.num_heads, self.label("mask"))
        if self.last:
            memory = self.last[0](memory)
        for layer in self.decoder:
            x = layer(x, memory, target_mask=mask)
        return self.last[1](x) if self.last else x
