"""Layers that look vectors up in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.arguments.leniency import Deviation
from descend.errors import GraphError
from descend.graph.layer import Layer, WeightSlot, refuses
from descend.graph.optimizers import SGD
from descend.graph.weights import NormalInitializer

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = ["DistEmbedding", "Embedding"]


class _Table(Layer):
    num_embeddings: int = 0
    embedding_dim: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The input's dimensions and one more, embedding_dim."""
        if self.num_embeddings < 1 or self.embedding_dim < 1:
            raise GraphError(
                f"has num_embeddings {self.num_embeddings} and embedding_dim {self.embedding_dim}; "
                "both must be at least 1"
            )
        return (*inputs[0].shape, self.embedding_dim)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The table, a vector in each column."""
        shape = (self.embedding_dim, self.num_embeddings)
        return (
            WeightSlot(
                "weights", shape, NormalInitializer(), self.num_embeddings, self.embedding_dim, column_major=True
            ),
        )


class Embedding(_Table):
    """The vector ⌊x⌋ of a table for each entry x; zeros for an index out of range. No gradient flows to the indices.

    The vector `padding_idx`, if set, starts at zero, however the others do, reads as zeros and gets no gradient.

    Shapes: x any; y (*x, embedding_dim); table (embedding_dim, num_embeddings), from N(0, 1). Listed values fill it
    column by column, so one vector comes after the other.
    """

    message: ClassVar[str] = "Layer.Embedding"
    index_parents: ClassVar[tuple[int, ...]] = (0,)

    padding_idx: int | None = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The input's dimensions and one more, embedding_dim."""
        shape = super().output_shape(inputs)
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.num_embeddings:
            raise GraphError(f"has padding_idx {self.padding_idx}; expected 0 to {self.num_embeddings - 1}, or unset")
        return shape

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The table, whose vector `padding_idx` starts at zero."""
        (table,) = super().weight_slots(inputs)
        return (table if self.padding_idx is None else table._replace(zero_columns=(self.padding_idx,)),)


class DistEmbedding(_Table):
    """Embedding, with a table that LBANN spreads over processes; the arithmetic is Embedding's.

    With `sparse_sgd` the table is updated by SGD of rate `learning_rate`, whatever the experiment's optimizer is,
    unless its weights have one of their own. barrier_in_forward_prop changes nothing here.
    """

    message: ClassVar[str] = "Layer.DistEmbedding"
    index_parents: ClassVar[tuple[int, ...]] = (0,)

    sparse_sgd: bool = False
    learning_rate: float = 0.0
    barrier_in_forward_prop: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The input's dimensions and one more, embedding_dim."""
        if self.sparse_sgd != (self.learning_rate > 0):
            problem = f"has sparse_sgd {self.sparse_sgd} and learning_rate {self.learning_rate!r}"
            if self.sparse_sgd or refuses(self, Deviation.SETTING_WITHOUT_EFFECT, problem):
                raise GraphError(f"{problem}; set both, the rate above 0, or neither")
        return super().output_shape(inputs)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The table, with an update rule of its own if asked for."""
        (slot,) = super().weight_slots(inputs)
        return (slot._replace(optimizer=SGD(learn_rate=self.learning_rate)) if self.sparse_sgd else slot,)
