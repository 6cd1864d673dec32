"""Layers that change images (channels, height, width). No gradient flows through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError
from descend.graph.layer import Layer

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = ["BilinearResize", "CompositeImageTransformation", "Cutout", "Rotation"]


def _check_image(incoming: Incoming) -> None:
    if len(incoming.shape) != 3:
        raise GraphError(f"needs an image (channels, height, width), and {incoming}: put a Reshape between them")


class BilinearResize(Layer):
    """Images of `height` x `width`, each pixel a mean of the four around its place, weighted by nearness.

    Pixel centres lie at one half, so output pixel i stands at (i + ½) · in / out − ½ of the input; edges go on outside.
    """

    message: ClassVar[str] = "Layer.BilinearResize"

    height: int = 0
    width: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C, height, width)."""
        _check_image(inputs[0])
        if self.height < 1 or self.width < 1:
            raise GraphError(f"has height {self.height} and width {self.width}; both must be at least 1")
        return (inputs[0].shape[0], self.height, self.width)


class _WithNumbers(Layer):
    """An image and a few numbers that say what becomes of it."""

    counts: ClassVar[dict[str, int]]

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the image."""
        image, *numbers = inputs
        _check_image(image)
        for (what, count), given in zip(self.counts.items(), numbers, strict=True):
            if given.size != count:
                raise GraphError(f"needs {what} of {count} number{'' if count == 1 else 's'}, and {given}")
        return image.shape


class Rotation(_WithNumbers):
    """The image turned against the clock by an angle in degrees, the second parent; bilinear, and zero outside.

    Output pixel (x, y) is taken from (c + R (p − c)) of the input, with p = (x, y), y downwards,
    c = (⌊W / 2⌋, ⌊H / 2⌋) and R = [[cos, −sin], [sin, cos]].
    """

    message: ClassVar[str] = "Layer.Rotation"
    num_parents: ClassVar[int | None] = 2
    counts: ClassVar[dict[str, int]] = {"an angle": 1}


class CompositeImageTransformation(_WithNumbers):
    """The image turned, sheared and moved. Parents: image, angle in degrees, shear (x, y), translation (x, y).

    Output pixel p is taken from c + S R (p − c) + t of the input: c and R as in Rotation, S = [[1, shear x],
    [shear y, 1]], t the translation in pixels. Bilinear, and zero outside.
    """

    message: ClassVar[str] = "Layer.CompositeImageTransformation"
    num_parents: ClassVar[int | None] = 4
    counts: ClassVar[dict[str, int]] = {"an angle": 1, "a shear": 2, "a translation": 2}


class Cutout(_WithNumbers):
    """The image with a square of zeros; the second parent is its side s in pixels, rounded down.

    The centre (row, column) is a random pixel, one for the whole mini-batch; the square goes from centre − ⌊s / 2⌋
    over s pixels, as far as the image does. It is cut in training and in evaluation.

    Source: DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552
    """

    message: ClassVar[str] = "Layer.Cutout"
    num_parents: ClassVar[int | None] = 2
    counts: ClassVar[dict[str, int]] = {"a side": 1}
