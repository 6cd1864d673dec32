"""Where data enter the graph."""

from __future__ import annotations

from typing import ClassVar

from descend.graph.layer import Incoming, Layer, Shape

__all__ = ["Input"]


class Input(Layer):
    """One field of the reader, `data_field`: samples, labels, responses or any other that it offers.

    Several Inputs may name the same field. The check hands the field's shape in as if it came from a parent.
    """

    message: ClassVar[str] = "Layer.Input"
    num_parents: ClassVar[int | None] = 0

    data_field: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the field. A single number is a tensor of one entry."""
        return inputs[0].shape or (1,)
