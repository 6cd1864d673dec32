"""Tensors put together and cut apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import Add, Concatenation, Embedding, Gather, LessConstant, Scale, Scatter
from descend.onnx.importers.steps import cut, known_sizes, own_axis, picked, piece_bounds
from descend.onnx.registry import imports
from descend.onnx.types import INTEGERS
from descend.onnx.values import ConstantValue, Node, ShapeValue, Tensor, UnsupportedNode, Value, integers, text

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter


@imports("Concat", integers="computed")
def concat(r: GraphImporter, node: Node) -> Value:
    """Concatenation, of tensors or of sizes."""
    if not any(isinstance(value, Tensor) for value in node.inputs):
        parts = [known_sizes(value) for value in node.inputs]
        r.budget.array(sum(map(len, parts)))
        return ShapeValue(tuple(size for part in parts for size in part))
    dims = max(len(value.shape) for value in node.inputs if isinstance(value, Tensor))
    axis = own_axis(node.get("axis", 0), dims)
    parts = [r.as_tensor(value, node, dims) for value in node.inputs]
    return r.layer(Concatenation, node, *parts, axis=axis)


@imports("Slice", integers="moved")
def piece(r: GraphImporter, node: Node) -> Value:
    """Slice, of a tensor or of sizes."""
    value = node.given(0)
    begins, ends = node.ints(1, "starts") or (), node.ints(2, "ends") or ()
    axes = node.ints(3, "axes") or tuple(range(len(begins)))
    steps = node.ints(4, "steps") or (1,) * len(begins)
    if isinstance(value, ShapeValue):
        bounds = list(zip(begins, ends, steps, strict=False))
        if not len(begins) == len(ends) == len(steps) == 1 or 0 in steps:
            raise UnsupportedNode("takes pieces of a list of sizes along more than one dimension, or in steps of 0")
        return ShapeValue(value.sizes[slice(*bounds[0])])
    x = node.tensor()
    if not len(begins) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise UnsupportedNode("has starts, ends, axes and steps of different lengths, or a step of 0")
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        if axis % (len(x.shape) + 1) == 0 and begin == 0 and step == 1 and end >= 2**31 - 1:
            continue  # all samples
        own = own_axis(axis, len(x.shape))
        x = picked(r, node, x, own, range(x.shape[own])[begin:end:step])
    return x


@imports("Split", integers="moved")
def split(r: GraphImporter, node: Node) -> Value | tuple[Value, ...]:
    """A Slice for each piece."""
    x = node.tensor()
    axis = own_axis(node.get("axis", 0), len(x.shape))
    bounds = piece_bounds(node, x.shape[axis])
    pieces = tuple(cut(r, f"{node.name}/{i}", x, axis, begin, end) for i, (begin, end) in enumerate(bounds))
    return pieces[0] if len(pieces) == 1 else pieces


@imports("Gather", integers="moved")
def gather(r: GraphImporter, node: Node) -> Value:
    """A table of vectors, or entries at constant places."""
    data, index = node.given(0), node.given(1)
    if isinstance(data, ShapeValue):
        wanted = node.fixed(1).array
        places, count = integers(wanted), len(data.sizes)
        if not all(-count <= place < count for place in places):
            raise UnsupportedNode(f"takes places outside 0 to {count - 1}")
        return ShapeValue(tuple(data.sizes[place] for place in places), single=wanted.ndim == 0)
    if isinstance(data, ConstantValue):
        return _embedded(r, node, data)
    if not isinstance(index, ConstantValue):
        raise UnsupportedNode("takes entries at places that are computed from the data")
    x, places = node.tensor(), index.array
    if places.dtype.kind not in "iu" or not places.size:
        raise UnsupportedNode(f"takes entries at {places.size} places of {places.dtype}")
    axis = own_axis(node.get("axis", 0), len(x.shape))
    size = x.shape[axis]
    found = np.where(places < 0, places + size, places).reshape(-1)
    if not ((found >= 0) & (found < size)).all():
        raise UnsupportedNode(f"takes places outside 0 to {size - 1}")
    y = picked(r, node, x, axis, found)
    return r.reshaped(y, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]), f"{node.name}/shape")


def _embedded(r: GraphImporter, node: Node, table: ConstantValue) -> Tensor:
    x, array = node.tensor(1), table.array
    if not array.size or node.axis(array.ndim, 0) != 0:
        raise UnsupportedNode("looks up something else than entries of the first dimension of a table")
    count, *form = array.shape
    rows = table if array.ndim == 2 else ConstantValue(array.reshape(count, -1), table.name)
    weights = r.weights(rows, f"{node.name}/table", column_major=True, turned=True)
    own: dict[str, Any] = {"num_embeddings": count, "embedding_dim": rows.array.shape[1]}
    y = r.layer(Embedding, node, r.checked(x, count, node), weights=[weights], **own)
    return r.reshaped(y, (*x.shape, *form), f"{node.name}/shape")


@imports("OneHot", integers="moved")
def one_hot(r: GraphImporter, node: Node) -> Value:
    """A table of unit vectors."""
    x, size, values = node.tensor(), node.integer(1), node.fixed(2).array
    if size < 1 or values.shape != (2,):
        raise UnsupportedNode(f"has depth {size} and values of shape {values.shape}; expected at least 1, and (2,)")
    off, on = values.tolist()
    if off != 0 or node.get("axis", -1) not in (-1, len(x.shape) + 1):
        raise UnsupportedNode(
            "writes something else than 0 where no index points, or makes another dimension than the last"
        )
    r.budget.array(size, size, itemsize=8)
    weights = r.weights(ConstantValue(np.eye(size, dtype=np.float32) * on), f"{node.name}/table", column_major=True)
    if x.type not in INTEGERS:
        x = r.formatted(x, "int64", f"{node.name}/places")
    return r.layer(
        Embedding, node, _counted(r, node, x, size), weights=[weights], num_embeddings=size, embedding_dim=size
    )


def _counted(r: GraphImporter, node: Node, index: Tensor, size: int) -> Tensor:
    """Indices of which those below 0 count from the end."""
    below = r.layer(LessConstant, f"{node.name}/below", index, constant=0.0)
    return r.layer(Add, f"{node.name}/index", index, r.layer(Scale, f"{node.name}/more", below, constant=float(size)))


@imports("GatherND", integers="moved")
def gather_nd(r: GraphImporter, node: Node) -> Value:
    """Places in the first dimensions, which are the samples unless they have been moved."""
    raise UnsupportedNode(
        "takes entries at places of its own for each sample"
        if node.get("batch_dims", 0)
        else "takes entries along the samples"
    )


@imports("ScatterElements", integers="computed")
def scatter_elements(r: GraphImporter, node: Node) -> Value:
    """What was there and a Scatter, in one dimension; with sums alone, since entries that come twice have no order."""
    if text(node.get("reduction", "none")) != "add":
        raise UnsupportedNode("puts entries in the place of others, and Scatter adds them (reduction add)")
    index, updates = (r.as_tensor(node.given(place), node, 1) for place in (1, 2))
    before = r.as_tensor(node.given(0), node, 1)
    if {len(one.shape) for one in (before, index, updates)} != {1}:
        raise UnsupportedNode("scatters in more than one dimension")
    own_axis(node.get("axis", 0), 1)
    place = r.checked(index, before.shape[0], node)
    added = r.layer(Scatter, f"{node.name}/added", updates, place, dims=before.shape)
    return r.layer(Add, node, before, added)


@imports("GatherElements", integers="moved")
def gather_elements(r: GraphImporter, node: Node) -> Value:
    """Gather, from one dimension."""
    x, index = node.tensor(0, 1), r.as_tensor(node.given(1), node, 1)
    own_axis(node.get("axis", 0), 1)
    return r.layer(Gather, node, x, r.checked(index, x.shape[0], node))
