"""What several families share: shapes that pass through or must agree, and numbers for each spatial dimension."""

from __future__ import annotations

from typing import ClassVar

from descend.errors import GraphError
from descend.graph.layer import Incoming, Layer, Shape, shown

__all__ = [
    "Entrywise",
    "PairLoss",
    "SameShape",
    "check_same_shapes",
    "per_dimension",
    "same_shape",
    "window_shape",
]


class Entrywise(Layer):
    """One parent, and an output of its shape."""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        return inputs[0].shape


class SameShape(Layer):
    """One or more parents of one shape, and an output of that shape."""

    num_parents: ClassVar[int | None] = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of every input."""
        return same_shape(inputs)


class PairLoss(Layer):
    """Prediction and label of one shape, and one number for each sample."""

    num_parents: ClassVar[int | None] = 2

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        same_shape(inputs)
        return (1,)


def check_same_shapes(inputs: tuple[Incoming, ...]) -> None:
    """Refuse inputs whose shapes differ.

    Raises:
        GraphError: they do; it names the first pair.
    """
    first = inputs[0]
    other = next((one for one in inputs if one.shape != first.shape), None)
    if other is None:
        return
    remedy = (
        "put a Reshape in front of one of them"
        if other.size == first.size
        else "the layers before must give equally many entries, such as num_neurons equal to the number of classes"
    )
    raise GraphError(f"needs parents of one shape; {first} and {other}: {remedy}")


def same_shape(inputs: tuple[Incoming, ...]) -> Shape:
    """The shape that all inputs have.

    Raises:
        GraphError: they do not.
    """
    check_same_shapes(inputs)
    return inputs[0].shape


def per_dimension(
    name: str, values: tuple[int, ...], dimensions: int, unset: int | None, lowest: int
) -> tuple[int, ...]:
    """A number for each spatial dimension; one given number holds for all of them.

    Args:
        name: The field, for errors.
        values: The field.
        dimensions: How many numbers are wanted.
        unset: What an empty field means, or None where it must be set.
        lowest: The smallest number allowed.

    Raises:
        GraphError: the count or a number is wrong.
    """
    if not values and unset is not None:
        return (unset,) * dimensions
    if len(values) not in (1, dimensions):
        raise GraphError(
            f"has {len(values)} numbers in {name}; it needs 1, or {dimensions} for its {dimensions} dimensions"
        )
    if min(values) < lowest:
        raise GraphError(f"has {name} {shown(values)}; every number must be at least {lowest}")
    return values * dimensions if len(values) == 1 else values


def window_shape(
    incoming: Incoming,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Shape:
    """How many places a window takes in each dimension.

    floor((in + 2 padding − dilation (window − 1) − 1) / stride) + 1

    Raises:
        GraphError: the window is larger than the padded input.
    """
    places = tuple(
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(incoming.shape[1:], window, stride, padding, dilation, strict=True)
    )
    if min(places) < 1:
        raise GraphError(
            f"has a window of {shown(window)} (dilation {shown(dilation)}, padding {shown(padding)}) and {incoming}: "
            "the window does not fit; make it smaller or add padding"
        )
    return places
