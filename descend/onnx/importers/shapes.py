"""The same entries, or the same entries again, in other shapes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import Add, Concatenation, Constant, Embedding, Gather, LessConstant, Scale, Scatter, TensorPermute
from descend.onnx.graph_importer import imports
from descend.onnx.importers.steps import cut, known_sizes, own_axis, picked, piece_bounds, together
from descend.onnx.values import (
    INTEGERS,
    MULTIPLE,
    ConstantValue,
    Node,
    Permuted,
    ShapeValue,
    Tensor,
    UnsupportedNode,
    Value,
    integers,
    text,
)

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter

__all__ = ["new_axes", "wanted_sizes"]

Shape = tuple[int, ...]


@imports("Shape", integers="moved")
def shape_of(r: GraphImporter, node: Node) -> Value:
    """The sizes of a tensor."""
    value = node.given(0)
    if isinstance(value, Tensor):
        whole = (None, *value.shape)
        return ShapeValue(whole[node.get("start", 0) : node.get("end", len(whole))])
    return ShapeValue((len(known_sizes(value)),))


@imports("Reshape", "Flatten", "Squeeze", "Unsqueeze", integers="moved")
def reshape(r: GraphImporter, node: Node) -> Value:
    """Reshape within each sample."""
    value = node.given(0)
    if isinstance(value, ShapeValue):
        return ShapeValue(
            value.sizes, single=node.kind == "Squeeze" or (node.kind == "Reshape" and not wanted_sizes(node))
        )
    if not isinstance(value, Tensor):
        raise UnsupportedNode("takes a constant")
    whole = [None, *value.shape]
    match node.kind:
        case "Flatten":
            axis = node.get("axis", 1)
            if (axis + len(whole) if axis < 0 else axis) != 1:
                raise UnsupportedNode(f"has axis {axis}, which joins samples with other dimensions")
            return r.reshaped(value, (prod(value.shape),), node.name)
        case "Squeeze":
            gone = set(node.axes(1, len(whole)) or (i for i, size in enumerate(whole) if size == 1))
            if 0 in gone:
                raise UnsupportedNode("takes away the dimension of the samples")
            return r.reshaped(
                value, tuple(s for i, s in enumerate(whole) if i not in gone and s is not None), node.name
            )
        case "Unsqueeze":
            new = new_axes(node, len(whole))
            if 0 in new:
                raise UnsupportedNode("puts a dimension before that of the samples")
            rest = iter(value.shape)
            sizes = tuple(1 if i in new else next(rest) for i in range(1, len(whole) + len(new)))
            return r.reshaped(value, sizes, node.name)
        case _:
            wanted = wanted_sizes(node)
            if joined := _joined(r, value, wanted):
                return joined
            return r.reshaped(replace(value, joined=0), _filled(r, value, wanted, node), node.name)


def _joined(r: GraphImporter, x: Tensor, wanted: list[int | None]) -> Tensor | None:
    """A Reshape that joins samples with dimensions behind them and leaves the others: (samples · heads, ...)."""
    first, *rest = wanted or [None]
    kept = tuple(
        x.shape[i] if size == 0 and x.joined == 0 and i < len(x.shape) else size for i, size in enumerate(rest)
    )
    count = len(x.shape) - len(kept)
    if count < 1 or kept != x.shape[count:]:
        return None
    size = prod(x.shape[:count])
    alone = first is None or (first in (-1, r.batch) and size == 1)
    return None if alone or (first != -1 and first != (r.batch or 0) * size) else replace(x, joined=count)


def new_axes(node: Node, rank: int) -> set[int]:
    """The axes that an Unsqueeze of a tensor of `rank` dimensions puts in, counted in the result."""
    count = len(node.ints(1, "axes") or ())
    axes = set(node.axes(1, rank + count) or ())
    if len(axes) != count:
        raise UnsupportedNode("puts in an axis twice")
    return axes


def wanted_sizes(node: Node) -> list[int | None]:
    """The second input of a Reshape."""
    value = node.given(1)
    if isinstance(value, ShapeValue):
        return [-1 if size == MULTIPLE else size for size in value.sizes]
    return [*integers(node.fixed(1).array)]


def _filled(r: GraphImporter, x: Tensor, wanted: list[int | None], node: Node) -> Shape:
    """The sizes of a sample that a Reshape asks for; 0 keeps a size and −1 is worked out."""
    whole = [None, *x.shape]
    keep = not node.get("allowzero", 0)
    sizes = [whole[i] if size == 0 and keep and i < len(whole) else size for i, size in enumerate(wanted)]
    first, *rest = sizes or [-2]
    if None in rest or (first is not None and first not in (-1, r.batch)):
        raise UnsupportedNode(f"joins samples with other dimensions: {wanted}")
    known = prod(size for size in rest if size not in (-1, None))
    if -1 in rest:
        if first == -1 or not known or prod(x.shape) % known:
            raise UnsupportedNode(f"makes {wanted} of {x.shape}")
        rest = [prod(x.shape) // known if size == -1 else size for size in rest]
    return tuple(size for size in rest if size is not None)


@imports("Transpose", integers="moved")
def transpose(r: GraphImporter, node: Node) -> Value:
    """TensorPermute."""
    x = node.tensor()
    perm = node.perm(len(x.shape) + 1)
    if perm[0] != 0:
        raise UnsupportedNode(f"moves the dimension of the samples (perm {list(perm)})")
    return r.layer(TensorPermute, node, x, axes=[axis - 1 for axis in perm[1:]])


@imports("Expand", "Tile", integers="moved")
def expand(r: GraphImporter, node: Node) -> Value:
    """Tessellate."""
    value = node.given(0)
    wanted = wanted_sizes(node)
    if node.kind == "Tile":
        x = node.tensor()
        if len(wanted) != len(x.shape) + 1 or wanted[0] != 1 or min(one or 1 for one in wanted) < 1:
            raise UnsupportedNode("repeats samples, or does not say how often it repeats each dimension")
        return r.widened(x, tuple(s * int(t or 1) for s, t in zip(x.shape, wanted[1:], strict=True)), node)
    if not wanted:
        raise UnsupportedNode("makes a tensor without samples")
    if isinstance(value, ConstantValue) and wanted[0] not in (None, r.batch):
        if value.array.size == 1:
            return _everywhere(r, node, value.array, tuple(wanted))
        return _for_all_samples(r, node, value, wanted)
    dims = len(value.shape) + 1 if isinstance(value, Tensor) else len(wanted)
    if len(wanted) > dims:
        raise UnsupportedNode("puts dimensions before that of the samples")
    sizes = tuple(int(size or 1) for size in (wanted[1:] if len(wanted) == dims else wanted))
    x = r.as_tensor(value, node, dims - 1)
    if min(sizes, default=1) < 1:
        raise UnsupportedNode(f"makes {sizes} of {x.shape}")
    shape = together(x.shape, sizes)
    return r.widened(r.reshaped(x, (1,) * (len(shape) - len(x.shape)) + x.shape, node), shape, node)


def _for_all_samples(r: GraphImporter, node: Node, value: ConstantValue, wanted: list[int | None]) -> Permuted:
    """A constant in a form whose samples are not the first dimension, such as the first states of recurrent layers."""
    array = value.array.reshape((1,) * (len(wanted) - value.array.ndim) + value.array.shape)
    if wanted.count(None) != 1 or array.ndim != len(wanted):
        raise UnsupportedNode("gives a constant a first dimension that is not the samples'")
    shape = together(tuple(int(size or 1) for size in wanted), array.shape)
    place = wanted.index(None)
    array = r.of_any_sample(array, place)
    sizes = shape[:place] + shape[place + 1 :]
    y = r.as_tensor(ConstantValue(np.broadcast_to(array, sizes), value.name), node, len(sizes))
    groups: list[tuple[int | None, ...]] = [(size,) for size in sizes]
    return Permuted(y.layer, (*groups[:place], (None,), *groups[place:]))


@imports("Size", integers="moved")
def count_of(r: GraphImporter, node: Node) -> Value:
    """How many entries a list of sizes has."""
    value = node.given(0)
    if not isinstance(value, ShapeValue):
        raise UnsupportedNode("counts samples")
    return ConstantValue(np.asarray(len(value.sizes)))


@imports("ConstantOfShape", integers="moved")
def constant_of_shape(r: GraphImporter, node: Node) -> Value:
    """Constant, for every sample."""
    return _everywhere(r, node, node.get("value", np.zeros(1, np.float32)), known_sizes(node.given(0)))


def _everywhere(r: GraphImporter, node: Node, value: Any, sizes: tuple[int | None, ...]) -> Tensor | Permuted:
    """One number in all entries of sizes of which None stands for the samples."""
    if sizes.count(None) != 1 or len(sizes) < 2 or min(size or 0 for size in sizes) < 0:
        raise UnsupportedNode("computes with the number of samples")
    shape = tuple(size for size in sizes if size is not None)
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "fbiu":
        raise UnsupportedNode(f"repeats {number.size} entries of {number.dtype}, where a number is needed")
    if number.dtype.kind in "iu":
        y = r.as_tensor(ConstantValue(np.broadcast_to(number.reshape(()), shape)), node, len(shape))
    else:
        y = r.layer(Constant, node, value=float(number.reshape(())), num_neurons=shape)
    return y if sizes[0] is None else Permuted(y.layer, tuple((size,) for size in sizes))


# ---- tensors put together and cut apart


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
