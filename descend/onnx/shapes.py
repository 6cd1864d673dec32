"""Layers that move, join, pool, pick and repeat entries."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from descend.graph import (
    Argmax,
    Argmin,
    BilinearResize,
    Concatenation,
    Cross_Grid_Sum,
    Cross_Grid_Sum_Slice,
    Dropout,
    Dummy,
    Evaluation,
    Gather,
    Hadamard,
    Identity,
    IdentityZero,
    OneHot,
    Pooling,
    Reshape,
    Scatter,
    SeluDropout,
    Slice,
    Sort,
    Split,
    StopGradient,
    Sum,
    TensorPermute,
    Tessellate,
    Upsample,
    WeightedSum,
)
from descend.onnx.graph_exporter import exports
from descend.onnx.linear import whole_indices

if TYPE_CHECKING:
    from descend.graph import PlannedLayer
    from descend.onnx.graph_exporter import GraphExporter


@exports(Identity, StopGradient, Dropout, SeluDropout, Dummy, Evaluation)
def same(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """x, which is what these are in evaluation."""
    return x


@exports(IdentityZero)
def identity_zero(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """x, or zeros while the layer is frozen."""
    return (
        w.per_sample(w.array(np.zeros(planned.output_shape, np.float32)), planned.output_shape)
        if planned.layer.freeze
        else x
    )


@exports(Split)
def split(w: GraphExporter, planned: PlannedLayer, x: str) -> tuple[str, ...]:
    """x for each child."""
    return (x,) * len(planned.output_shapes)


@exports(Pooling)
def pooling(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """MaxPool or AveragePool."""
    layer = cast("Pooling", planned.layer)
    size, stride, padding, _ = layer.window()
    if layer.takes_largest:
        return w("MaxPool", x, kernel_shape=size, strides=stride, pads=padding * 2)
    counted = int(layer.pool_mode == "average")
    return w("AveragePool", x, kernel_shape=size, strides=stride, pads=padding * 2, count_include_pad=counted)


@exports(Reshape)
def reshape(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Reshape."""
    return w.reshaped(x, *planned.output_shape)


@exports(Concatenation)
def concatenation(w: GraphExporter, planned: PlannedLayer, *xs: str) -> str:
    """Concat."""
    return w("Concat", *xs, axis=cast("Concatenation", planned.layer).axis + 1)


@exports(Sum)
def total(w: GraphExporter, planned: PlannedLayer, *xs: str) -> str:
    """Sum."""
    return w("Sum", *xs)


@exports(Cross_Grid_Sum)
def total_for_each(w: GraphExporter, planned: PlannedLayer, *xs: str) -> tuple[str, ...]:
    """Sum, for each child."""
    return (w("Sum", *xs),) * len(planned.output_shapes)


@exports(Cross_Grid_Sum_Slice)
def total_in_pieces(w: GraphExporter, planned: PlannedLayer, *xs: str) -> tuple[str, ...]:
    """Sum, cut along the first dimension."""
    sizes = [shape[0] for shape in planned.output_shapes]
    points = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    whole = w("Sum", *xs)
    return tuple(_piece(w, whole, 1, begin, end) for begin, end in pairwise(points))


@exports(WeightedSum)
def weighted_sum(w: GraphExporter, planned: PlannedLayer, *xs: str) -> str:
    """Sum of products with factors."""
    factors = cast("WeightedSum", planned.layer).scaling_factors
    return w("Sum", *(w("Mul", x, w.number(factor)) for x, factor in zip(xs, factors, strict=True)))


@exports(Hadamard)
def hadamard(w: GraphExporter, planned: PlannedLayer, first: str, *others: str) -> str:
    """Products."""
    for other in others:
        first = w("Mul", first, other)
    return first


def _piece(w: GraphExporter, x: str, axis: int, begin: int, end: int) -> str:
    return w("Slice", x, w.ints(begin), w.ints(end), w.ints(axis))


@exports(Slice)
def slices(w: GraphExporter, planned: PlannedLayer, x: str) -> tuple[str, ...]:
    """A Slice for each child."""
    layer = cast("Slice", planned.layer)
    return tuple(_piece(w, x, layer.axis + 1, begin, end) for begin, end in pairwise(layer.slice_points))


@exports(TensorPermute)
def permute(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Transpose."""
    return w("Transpose", x, perm=[0, *(axis + 1 for axis in cast("TensorPermute", planned.layer).axes)])


@exports(Tessellate)
def tessellate(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A Gather for each dimension that grows or shrinks."""
    for axis, (before, after) in enumerate(zip(planned.input_shapes[0], planned.output_shape, strict=True), 1):
        if before != after:
            x = w("Gather", x, w.ints(*(i % before for i in range(after))), axis=axis)
    return x


@exports(Upsample)
def upsample(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A Gather for each dimension that grows."""
    for axis, factor in enumerate(cast("Upsample", planned.layer).factors(), 2):
        if factor > 1:
            size = planned.input_shapes[0][axis - 1]
            x = w("Gather", x, w.ints(*np.repeat(np.arange(size), factor).tolist()), axis=axis)
    return x


@exports(BilinearResize)
def bilinear_resize(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Resize, with the centres of pixels at one half."""
    (_, *before), (_, *after) = planned.input_shapes[0], planned.output_shape
    scales = np.array([1, 1, *(a / b for a, b in zip(after, before, strict=True))], np.float32)
    return w("Resize", x, "", w.array(scales), mode="linear", coordinate_transformation_mode="half_pixel")


@exports(Argmax, Argmin)
def extremum(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """ArgMax or ArgMin, as a number."""
    kind = "ArgMax" if isinstance(planned.layer, Argmax) else "ArgMin"
    return w.numbers(w(kind, x, axis=1, keepdims=1))


@exports(OneHot)
def one_hot(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Equal to each of 0 to size − 1; no other index is equal to one of them."""
    size = cast("OneHot", planned.layer).size
    return w.numbers(w("Equal", w("Floor", w.reshaped(x, 1)), w.array(np.arange(size, dtype=np.float32))))


@exports(Sort)
def sort(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """TopK of all."""
    name = w("TopK", x, w.ints(*planned.output_shape), axis=1, largest=int(cast("Sort", planned.layer).descending))
    w.nodes[-1].output.append(w.fresh(f"{name}_places"))
    return w("Identity", name)


def _along(w: GraphExporter, index: str, axis: int, shape: tuple[int, ...]) -> str:
    """Indices (samples, k) along an axis, for every entry of a tensor (samples, *shape)."""
    if len(shape) == 1:
        return index
    wide = w("Unsqueeze", index, w.ints(2 - axis))
    return w("Expand", wide, w.ints(1, *(size if i != axis else 1 for i, size in enumerate(shape))))


@exports(Gather)
def gather(w: GraphExporter, planned: PlannedLayer, x: str, indices: str) -> str:
    """GatherElements, and 0 for an index out of range."""
    axis, data = cast("Gather", planned.layer).axis or 0, planned.input_shapes[0]
    index, valid = whole_indices(w, indices, data[axis])
    found = w("GatherElements", x, _along(w, index, axis, data), axis=axis + 1)
    return w("Where", _along(w, valid, axis, data), found, w.number(0))


@exports(Scatter)
def scatter(w: GraphExporter, planned: PlannedLayer, x: str, indices: str) -> str:
    """ScatterElements that adds, of zeros for an index out of range."""
    axis, data, shape = cast("Scatter", planned.layer).axis or 0, planned.input_shapes[0], planned.output_shape
    index, valid = whole_indices(w, indices, shape[axis])
    kept = w("Where", _along(w, valid, axis, data), x, w.number(0))
    zeros = w.per_sample(w.number(0), shape)
    return w("ScatterElements", zeros, _along(w, index, axis, data), kept, axis=axis + 1, reduction="add")
