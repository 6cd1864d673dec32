"""Layers that pick, place, order and repeat entries.

An index comes as a number and is rounded down. No gradient flows to indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.arguments.leniency import Deviation
from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise, per_dimension
from descend.graph.layer import Layer, WeightSlot, refuses, shown
from descend.graph.optimizers import SGD
from descend.graph.weights import NormalInitializer

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = [
    "Argmax",
    "Argmin",
    "Crop",
    "DistEmbedding",
    "Embedding",
    "Gather",
    "InTopK",
    "OneHot",
    "Scatter",
    "Sort",
    "TensorPermute",
    "Tessellate",
    "UniformHash",
    "Upsample",
]


def _check_line(incoming: Incoming) -> None:
    if len(incoming.shape) != 1:
        raise GraphError(f"works on one dimension, and {incoming}: put a Reshape to {incoming.size} between them")


def _check_dims(dims: tuple[int, ...], incoming: Incoming) -> None:
    if len(dims) != len(incoming.shape) or min(dims) < 1:
        raise GraphError(f"has dims {shown(dims)}, and {incoming}: expected {len(incoming.shape)} sizes of at least 1")


class _Extremum(Layer):
    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        _check_line(inputs[0])
        return (1,)


class Argmax(_Extremum):
    """The index of the largest entry of a one-dimensional tensor; of equal ones the first. No gradient."""

    message: ClassVar[str] = "Layer.Argmax"


class Argmin(_Extremum):
    """The index of the smallest entry of a one-dimensional tensor; of equal ones the first. No gradient."""

    message: ClassVar[str] = "Layer.Argmin"


class InTopK(Entrywise):
    """1 at the k largest entries of the sample and 0 elsewhere; of equal ones the smaller index wins. No gradient."""

    message: ClassVar[str] = "Layer.InTopK"

    k: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        if self.k < 1:
            raise GraphError(f"has k {self.k}; it must be at least 1")
        return inputs[0].shape


class OneHot(Layer):
    """1 at the place that the input's one entry names and 0 elsewhere; zeros for an index out of range. No gradient.

    Shapes: x one entry; y (size,).
    """

    message: ClassVar[str] = "Layer.OneHot"
    index_parents: ClassVar[tuple[int, ...]] = (0,)

    size: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(size,)."""
        if self.size < 1:
            raise GraphError(f"has size {self.size}; it must be at least 1")
        if inputs[0].size != 1:
            raise GraphError(f"takes one index, and {inputs[0]}: put a Slice or an Argmax between them")
        return (self.size,)


class Sort(Entrywise):
    """One-dimensional data in rising order, or in falling order with `descending`. Gradients go back where they belong.

    Equal entries keep their order.
    """

    message: ClassVar[str] = "Layer.Sort"

    descending: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_line(inputs[0])
        return inputs[0].shape


class Crop(Layer):
    """A part of size `dims` at the place that the second parent gives, in [0, 1] for each dimension.

    The part begins at min(⌊place · (in − out + 1)⌋, in − out). A place outside [0, 1] is an error during the run.

    Shapes: x of N dimensions; place (N,); y `dims`. No gradient flows to the place.
    """

    message: ClassVar[str] = "Layer.Crop"
    sized_by: ClassVar[str] = "dims"
    num_parents: ClassVar[int | None] = 2

    dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """`dims`."""
        data, place = inputs
        _check_dims(self.dims, data)
        if any(size > whole for size, whole in zip(self.dims, data.shape, strict=True)):
            raise GraphError(f"has dims {shown(self.dims)}, and {data}, which is smaller")
        if place.shape != (len(data.shape),):
            raise GraphError(f"needs a place of {len(data.shape)} numbers, one a dimension of '{data.name}'; {place}")
        return self.dims


class _Indexed(Layer):
    """Data of one or two dimensions and an index for each entry along one of them."""

    num_parents: ClassVar[int | None] = 2
    index_parents: ClassVar[tuple[int, ...]] = (1,)

    axis: int | None = None

    def along(self, data: Incoming) -> int:
        """The axis that indices stand for.

        Raises:
            GraphError: data or axis do not fit.
        """
        dims = len(data.shape)
        if dims > 2:
            raise GraphError(f"works on one or two dimensions, and {data}: put a Reshape between them")
        if dims == 2 and self.axis is None:
            raise GraphError(f"has no axis, and {data}: set it to 0 or 1")
        if not 0 <= (self.axis or 0) < dims:
            raise GraphError(f"has axis {self.axis}, and {data}: expected 0 to {dims - 1}")
        return self.axis or 0


class Gather(_Indexed):
    """y[i] = x[index[i]] along `axis`, and 0 for an index out of range.

    Shapes: x one- or two-dimensional, then with axis 0 or 1; index (k,); y as x with k along the axis. The gradient
    flows to x alone.
    """

    message: ClassVar[str] = "Layer.Gather"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of x with as many entries along the axis as there are indices."""
        data, index = inputs
        axis = self.along(data)
        _check_line(index)
        return (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])


class Scatter(_Indexed):
    """y[index[i]] += x[i] along `axis`, from zeros of shape `dims`; an index out of range is left out.

    Shapes: x one- or two-dimensional, then with axis 0 or 1; index as long as x along the axis; y `dims`, as x but for
    the axis. The gradient flows to x alone.
    """

    message: ClassVar[str] = "Layer.Scatter"
    sized_by: ClassVar[str] = "dims"

    dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """`dims`."""
        data, index = inputs
        axis = self.along(data)
        if index.shape != (data.shape[axis],):
            raise GraphError(
                f"needs {data.shape[axis]} indices, one an entry of '{data.name}' along axis {axis}; {index}"
            )
        _check_dims(self.dims, data)
        if any(mine != whole for i, (mine, whole) in enumerate(zip(self.dims, data.shape, strict=True)) if i != axis):
            raise GraphError(f"has dims {shown(self.dims)}, and {data}: they may differ along axis {axis} alone")
        return self.dims


class Tessellate(Layer):
    """The input repeated in every dimension up to `dims`, and cut off there. Gradients of the copies are added."""

    message: ClassVar[str] = "Layer.Tessellate"
    sized_by: ClassVar[str] = "dims"

    dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """`dims`."""
        _check_dims(self.dims, inputs[0])
        return self.dims


class TensorPermute(Layer):
    """The axes of the sample in another order: axis i of the output is axis axes[i] of the input."""

    message: ClassVar[str] = "Layer.TensorPermute"

    axes: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The input's sizes in that order."""
        (incoming,) = inputs
        if sorted(self.axes) != list(range(len(incoming.shape))):
            raise GraphError(
                f"has axes {list(self.axes)}, and {incoming}: expected each of 0 to {len(incoming.shape) - 1} once"
            )
        return tuple(incoming.shape[axis] for axis in self.axes)


class Upsample(Layer):
    """Each entry repeated by a factor in each spatial dimension; `upsample_mode` is nearest.

    Shapes: x (C, *space) with `num_dims` spatial dimensions; y (C, *(space · factor)). With `has_vectors` the factors
    are scale_factors; without it scale_factors_i holds for all dimensions.
    """

    message: ClassVar[str] = "Layer.Upsample"

    upsample_mode: str = ""
    num_dims: int = 0
    has_vectors: bool = False
    scale_factors: tuple[int, ...] = ()
    scale_factors_i: int = 0

    def factors(self) -> tuple[int, ...]:
        """The factor of each spatial dimension.

        Raises:
            GraphError: their count is wrong or one is below 1.
        """
        if self.has_vectors and self.scale_factors_i:
            raise GraphError("has scale_factors_i, which counts without has_vectors alone: write scale_factors")
        if self.has_vectors:
            return per_dimension("scale_factors", self.scale_factors, self.num_dims, None, 1)
        if self.scale_factors:
            raise GraphError("has scale_factors, which count with has_vectors alone: set has_vectors")
        return per_dimension("scale_factors_i", (self.scale_factors_i,), self.num_dims, None, 1)

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C, *(space · factor))."""
        (incoming,) = inputs
        if self.upsample_mode != "nearest":
            raise GraphError(f"has upsample_mode '{self.upsample_mode}'; expected nearest")
        if self.num_dims < 1 or len(incoming.shape) != self.num_dims + 1:
            raise GraphError(f"has num_dims {self.num_dims}, and {incoming}: expected channels and num_dims dimensions")
        space = zip(incoming.shape[1:], self.factors(), strict=True)
        return (incoming.shape[0], *(size * factor for size, factor in space))


class UniformHash(Entrywise):
    """A number in [0, 1) for each entry that is a function of the entry's bytes and looks random. No gradient.

    It is the MD5 digest of the bytes of the entry (little end first, in the format of the tensor), of which the first
    eight bytes as an integer, little end first, are divided by 2⁶⁴ and rounded down to the format.

    Source: RFC 1321; LBANN has it on GPUs alone, and which bytes of the digest it takes is ours.
    """

    message: ClassVar[str] = "Layer.UniformHash"


# ---- layers that look vectors up in a table


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
