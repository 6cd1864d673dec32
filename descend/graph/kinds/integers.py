"""Kinds that compute in a format of numbers: integers, and fractions that are rounded to a narrower format.

Layers compute in the format of the run, whose fractions hold integers up to a bound alone (2²⁴ in float32). What a file
of another program computes with integers is computed as integers by these. LBANN has none of them, so a text names
each as a kind of this package's own.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError, nearest
from descend.graph.kinds.base import Entrywise, SameShape
from descend.graph.layer import Layer, Shape, shown

if TYPE_CHECKING:
    from descend.graph.layer import Incoming

__all__ = ["CheckedIndex", "IntegerConstant", "IntegerOperator", "IntegerReduction", "ToFormat"]

INTEGER_FORMATS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FORMATS = (*INTEGER_FORMATS, "float", "float16", "bfloat16")
_OPERATIONS = ("divide", "remainder", "modulo", "power")
_REDUCTIONS = ("sum", "mean", "product", "magnitudes", "squares", "norm")


def _check_word(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise GraphError(f"has {field} '{value}'; expected one of {', '.join(allowed)}{nearest(value, allowed)}")


class ToFormat(Entrywise):
    """Numbers brought to a format, as a conversion in C does: integers wrap around, fractions lose what is behind the
    point, and float16 and bfloat16 round and become infinite.

    The format "float" is that of the run. What was rounded to float16 or bfloat16 goes on in the format of the run.
    The gradient of a rounding is that of the identity; integers have none.
    """

    format: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_word("format", self.format, _FORMATS)
        return inputs[0].shape


class IntegerConstant(Layer):
    """A tensor of integers of dimensions `dims`, the same for every sample; one value stands for all entries."""

    num_parents: ClassVar[int | None] = 0

    values: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    format: str = "int64"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """`dims`."""
        _check_word("format", self.format, INTEGER_FORMATS)
        if not self.dims or min(self.dims) < 1:
            raise GraphError(f"has dims {shown(self.dims)}; expected one or more sizes of at least 1")
        if len(self.values) not in (1, prod(self.dims)):
            raise GraphError(f"has {len(self.values)} values; expected 1, or {prod(self.dims)} for its dims")
        return self.dims


class IntegerOperator(SameShape):
    """An operation on two tensors of integers.

    - divide: the quotient without what is behind the point
    - remainder: what that leaves, which has the sign of the dividend
    - modulo: what the quotient that is rounded down leaves, which has the sign of the divisor
    - power: without what is behind the point; beyond the format it is the smallest integer, as a conversion of a
      float64 makes it
    """

    num_parents: ClassVar[int | None] = 2

    operation: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of both."""
        _check_word("operation", self.operation, _OPERATIONS)
        return super().output_shape(inputs)


class IntegerReduction(Layer):
    """A tensor of integers without some of its dimensions; beyond the format there is its largest or smallest integer.

    - sum, product
    - mean: without what is behind the point
    - magnitudes: the sum of absolute values
    - squares: the sum of squares
    - norm: the root of that, without what is behind the point
    """

    operation: str = ""
    axes: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The sizes that are left, or one entry."""
        _check_word("operation", self.operation, _REDUCTIONS)
        shape = inputs[0].shape
        if not self.axes or not all(0 <= axis < len(shape) for axis in self.axes):
            raise GraphError(f"has axes {shown(self.axes)}, and {inputs[0]}: expected one or more of its dimensions")
        return tuple(size for axis, size in enumerate(shape) if axis not in self.axes) or (1,)


class CheckedIndex(Entrywise):
    """Indices from −size to size − 1, of which those below 0 count from the end; any other stops the run.

    `reader` is what reads the indices, for the error.
    """

    index_parents: ClassVar[tuple[int, ...]] = (0,)

    size: int = 0
    reader: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        if self.size < 1:
            raise GraphError(f"has size {self.size}; expected at least 1")
        return inputs[0].shape
