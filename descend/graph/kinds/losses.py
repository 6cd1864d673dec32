"""Losses and accuracies: one number a sample from a prediction and a label, in this order of parents; and norms."""

from __future__ import annotations

from typing import ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import PairLoss
from descend.graph.layer import Incoming, Layer, Shape, shown

__all__ = [
    "CategoricalAccuracy",
    "CrossEntropy",
    "L1Norm",
    "L2Norm2",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "TopKCategoricalAccuracy",
]


class CrossEntropy(PairLoss):
    """−Σ label log(prediction).

    Terms of label 0 are left out, so a prediction of 0 there does no harm. The gradient flows to both parents.

    Shapes: prediction and label alike; with `use_labels` the label holds class indices and has a first dimension of 1.
    """

    message: ClassVar[str] = "Layer.CrossEntropy"
    index_parents: ClassVar[tuple[int, ...]] = (1,)  # with use_labels

    use_labels: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        if not self.use_labels:
            return super().output_shape(inputs)
        prediction, label = inputs
        if label.shape != (1, *prediction.shape[1:]):
            raise GraphError(
                f"uses class indices; {prediction}, so the label must be {shown((1, *prediction.shape[1:]))}; {label}"
            )
        return (1,)


class MeanSquaredError(PairLoss):
    """Mean over the sample of (prediction − label)². The gradient flows to both."""

    message: ClassVar[str] = "Layer.MeanSquaredError"


class MeanAbsoluteError(PairLoss):
    """Mean over the sample of |prediction − label|. The gradient flows to both; where they are equal it is 0."""

    message: ClassVar[str] = "Layer.MeanAbsoluteError"


class _Norm(Layer):
    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        return (1,)


class L2Norm2(_Norm):
    """Σ x² over the sample: the square of its Euclidean norm."""

    message: ClassVar[str] = "Layer.L2Norm2"


class L1Norm(_Norm):
    """Σ |x| over the sample. The gradient at 0 is 0."""

    message: ClassVar[str] = "Layer.L1Norm"


class CategoricalAccuracy(PairLoss):
    """1 if prediction and label are largest at the same place, else 0. The smaller index wins a tie. No gradient."""

    message: ClassVar[str] = "Layer.CategoricalAccuracy"


class TopKCategoricalAccuracy(PairLoss):
    """1 if the label's place is among the k largest predictions, else 0. The smaller index wins a tie. No gradient."""

    message: ClassVar[str] = "Layer.TopKCategoricalAccuracy"

    k: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        if self.k < 1:
            raise GraphError(f"has k {self.k}; it must be at least 1")
        return super().output_shape(inputs)
