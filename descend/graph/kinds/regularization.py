"""Layers that act differently in training and in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = ["Dropout"]


class Dropout(Entrywise):
    """In training keeps each entry with probability keep_prob and divides it by keep_prob; in evaluation y = x.

    LBANN gives keep_prob no default, so an unset one (0) is refused rather than dropping everything; a negative one
    turns the layer off.
    """

    message: ClassVar[str] = "Layer.Dropout"

    keep_prob: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        if not (self.keep_prob < 0 or 0 < self.keep_prob <= 1):
            raise GraphError(
                f"has keep_prob {self.keep_prob!r}; expected above 0 and up to 1 (0.5 is usual), or negative for off"
            )
        return inputs[0].shape
