"""Layers that make few numbers of many: sums, means, variances, norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise, PairLoss
from descend.graph.layer import Layer, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = [
    "BatchwiseReduceSum",
    "ChannelwiseMean",
    "Covariance",
    "MultiDimReduction",
    "Reduction",
    "RowwiseWeightsNorms",
    "Variance",
]


class Reduction(Layer):
    """The sum (unless set), or the mean (also called average), of all entries of the sample. One entry."""

    message: ClassVar[str] = "Layer.Reduction"
    defaults: ClassVar[Mapping[str, Any]] = {"mode": "sum"}

    mode: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        if self.setting("mode") not in ("sum", "mean", "average"):
            raise GraphError(f"has mode '{self.mode}'; expected sum (or unset), mean or average")
        return (1,)


class MultiDimReduction(Layer):
    """The sum (unless set), product, max or min over `axes`, which are dropped.

    Shapes: x any; y without the axes, or one entry where all are dropped. The gradient is that of calculus in every
    mode; equal largest or smallest entries share it. (LBANN has a gradient for the sum alone.)
    """

    message: ClassVar[str] = "Layer.MultiDimReduction"
    defaults: ClassVar[Mapping[str, Any]] = {"mode": "sum"}

    mode: str = ""
    axes: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The input's shape without the axes."""
        (incoming,) = inputs
        dims = len(incoming.shape)
        if self.setting("mode") not in ("sum", "product", "max", "min"):
            raise GraphError(f"has mode '{self.mode}'; expected sum (or unset), product, max or min")
        if not self.axes or len(set(self.axes)) < len(self.axes) or not all(0 <= axis < dims for axis in self.axes):
            raise GraphError(f"has axes {list(self.axes)}, and {incoming}: expected different ones of 0 to {dims - 1}")
        return tuple(size for axis, size in enumerate(incoming.shape) if axis not in self.axes) or (1,)


class BatchwiseReduceSum(Entrywise):
    """y = Σ x over the samples of the whole mini-batch, handed to every sample.

    A mini-batch in several parts is refused.
    """

    message: ClassVar[str] = "Layer.BatchwiseReduceSum"


def _check_degrees(layer: Layer, incoming: Incoming, biased: bool) -> None:
    if incoming.size < 2 and not biased:
        raise GraphError(f"divides by the number of entries less 1, and {incoming}: set biased, or give more entries")


class Covariance(PairLoss):
    """y = Σ (x1 − mean x1) (x2 − mean x2) / (n − 1) over the n entries of the sample; / n with `biased`. One entry."""

    message: ClassVar[str] = "Layer.Covariance"

    biased: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        _check_degrees(self, inputs[0], self.biased)
        return super().output_shape(inputs)


class Variance(Layer):
    """y = Σ (x − mean x)² / (n − 1) over the n entries of the sample; / n with `biased`. One entry."""

    message: ClassVar[str] = "Layer.Variance"

    biased: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        _check_degrees(self, inputs[0], self.biased)
        return (1,)


class ChannelwiseMean(Layer):
    """The mean of each slice of the first dimension.

    Shapes: x (C, ...); y (C,).
    """

    message: ClassVar[str] = "Layer.ChannelwiseMean"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C,)."""
        return inputs[0].shape[:1]


class RowwiseWeightsNorms(Layer):
    """y_i = √Σ_j w_ij², the Euclidean norm of each row of a matrix of weights that another layer makes.

    It is given those weights, weights=[w]. The gradient flows to them; of a row of zeros it is 0.

    Shapes: w (rows, columns); y (rows,), the same for every sample.
    """

    message: ClassVar[str] = "Layer.RowwiseWeightsNorms"
    num_parents: ClassVar[int | None] = 0
    borrows_weights: ClassVar[bool] = True

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(rows,). The check hands in the weights as if they came from a parent."""
        (weights,) = inputs
        if len(weights.shape) != 2:
            raise GraphError(f"needs a matrix of weights, and '{weights.name}' are {shown(weights.shape)}")
        return weights.shape[:1]
