"""Steps that readings of several families take."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import (
    Add,
    Concatenation,
    Constant,
    Exp,
    Gather,
    Identity,
    Log,
    MultiDimReduction,
    Scale,
    Slice,
    StopGradient,
    Subtract,
    TensorPermute,
    Tessellate,
)
from descend.graph.kinds.integers import IntegerReduction
from descend.graph.layer import shown
from descend.onnx.values import ConstantValue, Node, Shape, ShapeValue, Tensor, UnsupportedNode, Value, integers

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter

__all__ = [
    "ahead",
    "cut",
    "known_sizes",
    "log_sum_exp",
    "nonzero",
    "own_axis",
    "padded",
    "picked",
    "piece_bounds",
    "reduced",
    "times",
    "together",
]


def nonzero(node: Node, what: str, value: float) -> float:
    """A number that is not 0."""
    if value == 0:
        raise UnsupportedNode(f"has {what} 0, which means the default in a description")
    return value


def times(r: GraphImporter, name: str, x: Tensor, factor: float) -> Tensor:
    """x times a number."""
    return r.layer(Scale, name, x, constant=factor)


def own_axis(axis: int, dims: int) -> int:
    """An axis within a sample of so many dimensions."""
    if not -dims - 1 <= axis <= dims:
        raise UnsupportedNode(f"has axis {axis}, and its input has {dims + 1} dimensions")
    own = axis % (dims + 1) - 1
    if own < 0:
        raise UnsupportedNode("works along the dimension of the samples")
    return own


def known_sizes(value: Value | None) -> tuple[int | None, ...]:
    """Sizes, some of which may not be known."""
    if isinstance(value, ShapeValue):
        return value.sizes
    if isinstance(value, ConstantValue):
        return tuple(integers(value.array))
    raise UnsupportedNode("joins sizes with data")


def cut(r: GraphImporter, name: str, x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Entries along an axis of the sample from `begin` up to, without, `end`."""
    if (begin, end) == (0, x.shape[axis]):
        return x
    # A Slice gives each child a piece of its own; behind an Identity one piece has any number of children.
    return r.layer(Identity, name, r.layer(Slice, f"{name}/cut", x, axis=axis, slice_points=(begin, end)))


def piece_bounds(node: Node, size: int) -> list[tuple[int, int]]:
    """Where each piece of a Split begins and ends along a dimension of this size."""
    count = node.get("num_outputs", len(node.taken))
    if count != len(node.taken) or (node.given(1) is not None and "num_outputs" in node.attributes):
        raise UnsupportedNode(f"has num_outputs {count}, {len(node.taken)} outputs, and sizes of its own or none")
    each = -(-size // count)
    sizes = node.ints(1, "split") or [min(each, size - i * each) for i in range(count)]
    if min(sizes) < 1 or sum(sizes) != size:
        raise UnsupportedNode(f"splits {size} entries into pieces of {', '.join(map(str, sizes))}")
    ends = list(accumulate(sizes))
    return [(end - own, end) for own, end in zip(sizes, ends, strict=True)]


def picked(r: GraphImporter, node: Node, x: Tensor, axis: int, places: range | np.ndarray[Any, Any]) -> Tensor:
    """Entries along an axis: a run of them, all of them repeated, each of them repeated, or any."""
    size, count = x.shape[axis], len(places)
    if not count:
        raise UnsupportedNode("takes no entries")
    if isinstance(places, range):
        if places.step == 1 or count == 1:
            return cut(r, node.name, x, axis, places[0], places[-1] + 1)
        r.budget.array(count)
        places = np.array(places)
    if (np.diff(places) == 1).all():
        return cut(r, node.name, x, axis, int(places[0]), int(places[-1]) + 1)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if (places == np.arange(count) % size).all():
        return r.layer(Tessellate, node, x, dims=shape)
    if count % size == 0 and (places == np.repeat(np.arange(size), count // size)).all():
        wide = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
        apart = r.reshaped(x, wide, f"{node.name}/apart")
        repeated = (*wide[: axis + 1], count // size, *wide[axis + 2 :])
        return r.reshaped(r.layer(Tessellate, node, apart, dims=repeated), shape, f"{node.name}/together")
    return _gathered(r, node, x, axis, places)


def _gathered(r: GraphImporter, node: Node, x: Tensor, axis: int, places: np.ndarray[Any, Any]) -> Tensor:
    """Gather of the first dimension of a matrix, in any order."""
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    first = ahead(r, f"{node.name}/first", x, axis)
    rows = r.reshaped(first, (x.shape[axis], prod(others)), f"{node.name}/rows")
    index = r.as_tensor(ConstantValue(places.astype(np.float32)), node, 1)
    y = r.layer(Gather, node, rows, index, axis=0)
    y = r.reshaped(y, (len(places), *others), f"{node.name}/whole")
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))]
    return y if axis == 0 else r.layer(TensorPermute, f"{node.name}/back", y, axes=back)


def together(*shapes: Shape) -> Shape:
    """The shape of tensors that are broadcast.

    Raises:
        UnsupportedNode: they do not fit.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise UnsupportedNode(
            f"brings together shapes that do not fit: {', '.join(shown(one) for one in shapes)}"
        ) from None


def ahead(r: GraphImporter, name: str, x: Tensor, axis: int) -> Tensor:
    """x with one dimension before the others."""
    others = [one for one in range(len(x.shape)) if one != axis]
    return x if axis == 0 else r.layer(TensorPermute, name, x, axes=[axis, *others])


def padded(r: GraphImporter, node: Node, x: Tensor, sides: list[tuple[int, int]], fill: float) -> Tensor:
    """x with so many entries of one value before and behind each dimension; fewer than none cut some off."""
    for axis, (before, behind) in enumerate(sides):
        size = x.shape[axis]
        if size + min(before, 0) + min(behind, 0) < 1:
            raise UnsupportedNode("leaves nothing")
        x = cut(r, f"{node.name}/cut{axis}", x, axis, -min(before, 0), size + min(behind, 0))
        parts = [x]
        for count, place in ((before, 0), (behind, 2)):
            if count > 0:
                shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
                name = f"{node.name}/pad{axis}_{place}"
                if node.integers:
                    entries = np.broadcast_to(np.array(fill, node.integers), shape)
                    parts.insert(place, r.as_tensor(ConstantValue(entries), replace(node, name=name), len(shape)))
                else:
                    parts.insert(place, r.layer(Constant, name, value=fill, num_neurons=shape))
        if len(parts) > 1:
            x = r.layer(Concatenation, f"{node.name}/padded{axis}", *parts, axis=axis)
    return x


def reduced(r: GraphImporter, node: Node, x: Tensor, mode: str, axes: tuple[int, ...], keep: bool) -> Tensor:
    """x without some dimensions, or with one entry in each of them."""
    own = sorted({own_axis(axis, len(x.shape)) for axis in axes})
    if node.integers and mode not in ("max", "min"):
        y = r.gives_integers(r.layer(IntegerReduction, node, x, operation=mode, axes=own), node.integers)
    else:
        y = r.layer(MultiDimReduction, node, x, mode="sum" if mode == "mean" else mode, axes=own)
    if mode == "mean" and not node.integers:
        y = times(r, f"{node.name}/mean", y, 1 / prod(x.shape[axis] for axis in own))
    left = tuple(size for axis, size in enumerate(x.shape) if axis not in own)
    kept = tuple(1 if axis in own else size for axis, size in enumerate(x.shape))
    return r.reshaped(Tensor(y.layer, left), kept if keep else left, f"{node.name}/shape")


def log_sum_exp(r: GraphImporter, node: Node, x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """m + log Σ exp(x − m) with the maximum m, which takes no part in gradients because it changes nothing."""
    part = replace(node, name=f"{node.name}/largest")
    largest = r.layer(StopGradient, f"{node.name}/level", reduced(r, part, x, "max", axes, keep=True))
    rest = r.layer(
        Exp, f"{node.name}/exp", r.layer(Subtract, f"{node.name}/rest", x, r.widened(largest, x.shape, node))
    )
    total = r.layer(
        Log, f"{node.name}/log", reduced(r, replace(node, name=f"{node.name}/sum"), rest, "sum", axes, True)
    )
    y = r.layer(Add, f"{node.name}/total", total, largest)
    own = {own_axis(axis, len(x.shape)) for axis in axes}
    left = tuple(size for axis, size in enumerate(x.shape) if axis not in own)
    return y if keep else r.reshaped(y, left, f"{node.name}/shape")
