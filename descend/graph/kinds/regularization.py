"""Layers that drop entries in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = ["Dropout", "SeluDropout"]

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _check_keep_prob(keep_prob: float) -> None:
    if not (keep_prob < 0 or 0 < keep_prob <= 1):
        raise GraphError(
            f"has keep_prob {keep_prob!r}; expected above 0 and up to 1 (0.5 is usual), or negative for off"
        )


class Dropout(Entrywise):
    """In training keeps each entry with probability keep_prob and divides it by keep_prob; in evaluation y = x.

    LBANN gives keep_prob no default, so an unset one (0) is refused rather than dropping everything; a negative one
    turns the layer off.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting.
    """

    message: ClassVar[str] = "Layer.Dropout"

    keep_prob: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_keep_prob(self.keep_prob)
        return inputs[0].shape


class SeluDropout(Entrywise):
    """Dropout that keeps mean and variance behind a Selu; in evaluation y = x.

        y = a x + b      where an entry is kept, with probability q = keep_prob
        y = a α' + b     elsewhere
        α' = −scale alpha,   a = (q + α'² q (1 − q))^−½,   b = −a (1 − q) α'

    alpha and scale are those of Selu unless both are set. keep_prob is as in Dropout.

    Source: Klambauer et al. 2017, Self-Normalizing Neural Networks, https://arxiv.org/abs/1706.02515
    """

    message: ClassVar[str] = "Layer.SeluDropout"

    keep_prob: float = 0.0
    alpha: float = 0.0
    scale: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_keep_prob(self.keep_prob)
        return inputs[0].shape

    def dropped_value(self) -> float:
        """α', what stands for a dropped entry."""
        alpha, scale = (self.alpha, self.scale) if self.alpha and self.scale else (_SELU_ALPHA, _SELU_SCALE)
        return -scale * alpha
