"""Language models: bidirectional encoders, and GPT, whose attention is causal.

Texts come as lines of token numbers of a fixed length. All tables and matrices start as N(0, 0.02²) and all biases at
zero, as published.

Source: Devlin et al. 2018, https://arxiv.org/abs/1810.04805 (BERT); Liu et al. 2019, https://arxiv.org/abs/1907.11692
(RoBERTa); Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    AddConstant,
    ChannelwiseFullyConnected,
    ConstantInitializer,
    CrossEntropy,
    Dropout,
    Embedding,
    Multiply,
    NormalInitializer,
    NotEqualConstant,
    NumpyInitializer,
    OperatorLayer,
    Relu,
    Reshape,
    Scale,
    Slice,
    Softmax,
    StopGradient,
    Tanh,
    TensorPermute,
    Tessellate,
    Weights,
    WeightsLayer,
    ops,
)
from descend.zoo.modules import Cumsum, Gelu, Gelu_approx, LearnedInputEncoding, Module, Silu
from descend.zoo.modules.module import fixed
from descend.zoo.transformer import Norm, TransformerEncoderLayer, causal_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph import Layer
    from descend.zoo.modules.module import Activation

__all__ = ["BERT", "GPT", "EncoderConfig", "RoBERTa", "bert_config", "next_token_loss"]

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Gelu,
    "gelu_new": Gelu_approx,
    "gelu_pytorch_tanh": Gelu_approx,
    "relu": Relu,
    "silu": Silu,
    "swish": Silu,
}
_DEVIATION = 0.02


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of RoBERTa or BERT, under the names of Hugging Face's configurations; the values are RoBERTa-base's.

    Attributes:
        sequence_length: Tokens of each text; longer ones are cut and shorter ones filled up before they come in.
    """

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    sequence_length: int = 512


def bert_config(**changes: Any) -> EncoderConfig:
    """The sizes of BERT-base (uncased); `changes` are fields of EncoderConfig."""
    sizes: dict[str, Any] = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    return EncoderConfig(**{**sizes, **changes})


class _TokenTable(Module):
    """A vector for each number."""

    def __init__(self, count: int, size: int, name: str, padding_idx: int | None = None) -> None:
        super().__init__(name)
        self.fields: dict[str, Any] = {"num_embeddings": count, "embedding_dim": size, "padding_idx": padding_idx}
        self.weights = Weights(NormalInitializer(standard_deviation=_DEVIATION), name=f"{name}_table")

    def forward(self, numbers: Layer) -> Layer:
        """Shapes: numbers (length,); result (length, size)."""
        return Embedding(numbers, weights=[self.weights], name=self.label(), **self.fields)


class _Encoder(Module):
    """Tokens, places and kinds of segments, layers of the transformer's encoder, and a pooler of the first position."""

    def __init__(
        self,
        config: Any,
        add_pooling_layer: bool = True,
        load_weights: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if config.hidden_act not in _ACTIVATIONS:
            raise ConfigurationError(
                f"{type(self).__name__} '{self.name}' has hidden_act '{config.hidden_act}'; expected one of "
                f"{', '.join(_ACTIVATIONS)}"
            )
        self.config, self.add_pooling_layer = config, add_pooling_layer
        size = config.hidden_size
        self.tokens = _TokenTable(config.vocab_size, size, f"{self.name}_tokens", config.pad_token_id)
        self.places = self._places_table()
        self.kinds = _TokenTable(config.type_vocab_size, size, f"{self.name}_kinds")
        self.norm = Norm(config.layer_norm_eps, f"{self.name}_norm")
        self.layers = [
            TransformerEncoderLayer(
                size,
                config.num_attention_heads,
                config.intermediate_size,
                config.hidden_dropout_prob,
                name=f"{self.name}_layer{i + 1}",
                activation=_ACTIVATIONS[config.hidden_act],
                epsilon=config.layer_norm_eps,
                attention_dropout=config.attention_probs_dropout_prob,
                inner_dropout=0.0,
            )
            for i in range(config.num_hidden_layers)
        ]
        self.pooler = [
            Weights(NormalInitializer(standard_deviation=_DEVIATION), name=f"{self.name}_pooler_matrix"),
            Weights(ConstantInitializer(), name=f"{self.name}_pooler_bias"),
        ]
        for layer in self.layers:
            _start_small(layer)
        if load_weights is not None:
            self._load(Path(load_weights))

    def _places_table(self) -> _TokenTable:
        raise NotImplementedError

    def _places_of(self, tokens: Layer) -> Layer:
        """(length,) the number of each token's place."""
        raise NotImplementedError

    def weights(self) -> list[Weights]:
        """All its weights."""
        found = [self.tokens.weights, self.places.weights, self.kinds.weights, *self.norm.weights]
        for layer in self.layers:
            found += _weights_of(layer)
        return found + (self.pooler if self.add_pooling_layer else [])

    def _load(self, folder: Path) -> None:
        for weights in self.weights():
            weights.initializer = NumpyInitializer(str(folder / f"{weights.name}.npy"))

    def forward(
        self,
        input_ids: Layer,
        attention_mask: Layer | None = None,
        token_type_ids: Layer | None = None,
        position_ids: Layer | None = None,
    ) -> Layer | tuple[Layer, Layer]:
        """The last hidden state and, with a pooling layer, tanh(W h + b) of its first position.

        Args:
            input_ids: (sequence_length,) numbers of tokens.
            attention_mask: (sequence_length,) 1 for a token that is seen and 0 for one that is not; all are seen
                without one.
            token_type_ids: (sequence_length,) which segment each token belongs to; 0 without them.
            position_ids: (sequence_length,) the place of each token; worked out without them.

        Returns:
            (sequence_length, hidden_size), and (hidden_size,) of the pooler if there is one.
        """
        config = self.config
        places = self._places_of(input_ids) if position_ids is None else position_ids
        kinds = token_type_ids or Scale(input_ids, constant=0.0, name=self.label("kind_0"))
        x = Add(self.tokens(input_ids), self.places(places), name=self.label("tokens_places"))
        x = self.norm(Add(x, self.kinds(kinds), name=self.label("embedded")))
        if config.hidden_dropout_prob:
            x = Dropout(x, keep_prob=1 - config.hidden_dropout_prob, name=self.label("drop"))
        mask = None if attention_mask is None else self._mask(attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return (x, self._pooled(x)) if self.add_pooling_layer else x

    def _mask(self, seen: Layer) -> Layer:
        """(heads, length, length) from (length,)."""
        length, heads = self.config.sequence_length, self.config.num_attention_heads
        chain = [ops.SubtractConstant(constant=1.0), ops.Scale(constant=1e9)]
        fixed_mask = StopGradient(seen, name=self.label("seen"))
        unseen = OperatorLayer(fixed_mask, ops=chain, name=self.label("unseen"))
        line = Reshape(unseen, dims=[1, 1, length], name=self.label("unseen_line"))
        return Tessellate(line, dims=[heads, length, length], name=self.label("mask"))

    def _pooled(self, x: Layer) -> Layer:
        first = Slice(x, slice_points=[0, 1], name=self.label("first"))
        size = self.config.hidden_size
        y = ChannelwiseFullyConnected(
            first, output_channel_dims=size, weights=self.pooler, name=self.label("pooler_map")
        )
        return Tanh(Reshape(y, dims=[size], name=self.label("pooler_line")), name=self.label("pooler"))


def _weights_of(layer: TransformerEncoderLayer) -> list[Weights]:
    attention, maps = layer.attentions[0], layer.feedforward
    own = [*attention.query_weights, *attention.key_weights, *attention.value_weights, *attention.output_weights]
    own += [*maps.first.weights, *maps.second.weights]
    return own + [weights for shortcut in layer.shortcuts for weights in shortcut.norm.weights]


def _start_small(layer: TransformerEncoderLayer, factor: float = 1.0) -> None:
    """Start matrices as N(0, 0.02²); those in front of a sum with `factor` on the deviation."""
    attention, maps = layer.attentions[0], layer.feedforward
    plain = (attention.query_weights, attention.key_weights, attention.value_weights, maps.first.weights)
    for weights in plain:
        weights[0].initializer = NormalInitializer(standard_deviation=_DEVIATION)
    for weights in (attention.output_weights, maps.second.weights):
        weights[0].initializer = NormalInitializer(standard_deviation=_DEVIATION * factor)


class BERT(_Encoder):
    """BERT's encoder: places count from 0.

    Args:
        config: `bert_config()`, EncoderConfig, or any object with these attributes.
        add_pooling_layer: Whether the first position is pooled.
        load_weights: Folder of .npy files named as the weights are.
        name: `bert<N>` without one.
    """

    prefix: ClassVar[str] = "bert"

    def _places_table(self) -> _TokenTable:
        return _TokenTable(self.config.max_position_embeddings, self.config.hidden_size, f"{self.name}_places")

    def _places_of(self, tokens: Layer) -> Layer:
        length = self.config.sequence_length
        counted = fixed(range(length), self.label("counted"))
        return WeightsLayer(dims=[length], weights=[counted], name=self.label("place_numbers"))


class RoBERTa(_Encoder):
    """RoBERTa's encoder: places count from pad_token_id + 1, and padding has none.

    Args:
        config: EncoderConfig, or any object with its attributes.
        add_pooling_layer: Whether the first position is pooled.
        load_weights: Folder of .npy files named as the weights are.
        name: `roberta<N>` without one.
    """

    prefix: ClassVar[str] = "roberta"

    def _places_table(self) -> _TokenTable:
        config = self.config
        return _TokenTable(
            config.max_position_embeddings, config.hidden_size, f"{self.name}_places", config.pad_token_id
        )

    def _places_of(self, tokens: Layer) -> Layer:
        pad = self.config.pad_token_id
        real = NotEqualConstant(tokens, constant=pad, name=self.label("real"))
        counted = cast("Layer", Cumsum(real, [self.config.sequence_length], name=self.label("counted")))
        numbered = Multiply(counted, real, name=self.label("numbered"))
        return AddConstant(numbered, constant=pad, name=self.label("place_numbers"))


class GPT(Module):
    """A decoder alone: each position sees those up to itself, and gives logits for the token behind it.

    Args:
        vocab_size: Number of tokens.
        length: Tokens of each text.
        hidden_size: Size of each position.
        num_layers: Number of layers.
        num_heads: Heads of each attention.
        dropout: Probability that an entry is dropped in training.
        feedforward_size: Size between the two maps of a layer; 4 hidden_size without one.
        name: `gpt<N>` without one.

    The logits are products with the table of tokens. The defaults are GPT-2's smallest sizes. Matrices in front of a
    sum start smaller by √(2 num_layers).
    """

    prefix: ClassVar[str] = "gpt"

    def __init__(
        self,
        vocab_size: int = 50257,
        length: int = 1024,
        hidden_size: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        dropout: float = 0.1,
        feedforward_size: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if min(vocab_size, length, num_layers) < 1:
            raise ConfigurationError(
                f"GPT '{self.name}' has vocab_size {vocab_size}, length {length} and num_layers {num_layers}; "
                "all must be at least 1"
            )
        self.vocab_size, self.length, self.num_heads = vocab_size, length, num_heads
        self.tokens = _TokenTable(vocab_size, hidden_size, f"{self.name}_tokens")
        self.places = LearnedInputEncoding(hidden_size, length, dropout, name=f"{self.name}_places")
        inner = 4 * hidden_size if feedforward_size is None else feedforward_size
        self.layers = [
            TransformerEncoderLayer(
                hidden_size,
                num_heads,
                inner,
                dropout,
                name=f"{self.name}_layer{i + 1}",
                activation=Gelu_approx,
                norm_first=True,
                inner_dropout=0.0,
            )
            for i in range(num_layers)
        ]
        for layer in self.layers:
            _start_small(layer, (2 * num_layers) ** -0.5)
        self.norm = Norm(1e-5, f"{self.name}_norm")

    def forward(self, tokens: Layer) -> Layer:
        """Shapes: tokens (length,), numbers; result (length, vocab_size), logits."""
        x = self.places(self.tokens(tokens), self.length)
        mask = causal_mask(self.length, self.num_heads, self.label("mask"))
        for layer in self.layers:
            x = layer(x, mask)
        return ChannelwiseFullyConnected(
            self.norm(x),
            output_channel_dims=self.vocab_size,
            bias=False,
            transpose=True,  # the table has a column for each token
            weights=[self.tokens.weights],
            name=self.label("logits"),
        )


def next_token_loss(logits: Layer, targets: Layer, length: int, name: str = "loss") -> Layer:
    """The mean over the positions of −log p(target), for an objective.

    Args:
        logits: (length, vocab_size), as GPT gives them.
        targets: (length,) the number of the token behind each position.
        length: Positions of each text.
        name: Of the last layer.
    """
    classes_first = TensorPermute(logits, axes=[1, 0], name=f"{name}_logits")
    probabilities = Softmax(classes_first, softmax_mode="channel", name=f"{name}_probabilities")
    line = Reshape(targets, dims=[1, length], name=f"{name}_targets")
    total = CrossEntropy(probabilities, line, use_labels=True, name=f"{name}_sum")
    return Scale(total, constant=1.0 / length, name=name)
