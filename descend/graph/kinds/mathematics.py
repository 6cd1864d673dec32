"""Products of matrices and Fourier transforms."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise
from descend.graph.layer import Layer

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = ["DFTAbs", "MatMul"]


def _rows_and_columns(shape: Shape, transpose: bool) -> tuple[int, int]:
    return (shape[-1], shape[-2]) if transpose else (shape[-2], shape[-1])


class MatMul(Layer):
    """y = A B, with transpose_a Aᵀ B, with transpose_b A Bᵀ; with three dimensions one product for each of the first.

    Shapes: A (..., rows, k), B (..., k, columns), y (..., rows, columns); two dimensions or three with one first size.
    """

    message: ClassVar[str] = "Layer.MatMul"
    num_parents: ClassVar[int | None] = 2

    transpose_a: bool = False
    transpose_b: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(..., rows, columns)."""
        a, b = inputs
        if len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2]:
            raise GraphError(
                f"multiplies matrices, or stacks of equally many of them; {a} and {b}: put Reshapes between"
            )
        rows, inner = _rows_and_columns(a.shape, self.transpose_a)
        other, columns = _rows_and_columns(b.shape, self.transpose_b)
        if inner != other:
            raise GraphError(
                f"needs as many columns of the first as rows of the second, and has {inner} and {other}; {a} and {b}: "
                "check transpose_a and transpose_b"
            )
        return (*a.shape[:-2], rows, columns)

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """For each entry of the output one for each entry of a row."""
        _, inner = _rows_and_columns(inputs[0], self.transpose_a)
        return prod(output) * inner


class DFTAbs(Entrywise):
    """y = |F x|, the magnitude of the discrete Fourier transform of real data, each channel by itself, not scaled.

        (F x)_k = Σ_j x_j exp(−2πi k·j / n)

    Shapes: x (C, *space) of one to three spatial dimensions; y as x. The gradient where y = 0 is 0.
    """

    message: ClassVar[str] = "Layer.DFTAbs"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        (incoming,) = inputs
        if not 2 <= len(incoming.shape) <= 4:
            raise GraphError(
                f"works on channels and one to three dimensions, and {incoming}: put a Reshape between them"
            )
        return incoming.shape
