"""Nodes on tensors whose samples are not the first dimension, as torch's attention has them in between.

Such a tensor is still the output of a layer, which has the samples first; `Permuted.groups` says where they are in the
file's tensor. A Transpose moves them, a Reshape joins them with other dimensions or takes them apart again, and a
product with a matrix works on the last dimension wherever they are. Sooner or later they come back to the front.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain, groupby
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from descend.graph import Concatenation, TensorPermute
from descend.onnx.importers import ENTRYWISE, fully_connected, new_axes, picked, piece_bounds, wanted_sizes
from descend.onnx.values import MULTIPLE, ConstantValue, Node, Permuted, ShapeValue, Tensor, UnsupportedNode

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter, NodeImporter
    from descend.onnx.values import Groups, Value

__all__ = ["MOVING", "import_permuted", "joined_samples", "plain_shape"]

# Operators that may move the samples away from the front, or take what is joined with them.
MOVING = ("Transpose", "Reshape", "Unsqueeze", "Gemm", "Shape")


def import_permuted(r: GraphImporter, node: Node, import_node: NodeImporter) -> Value | tuple[Value | None, ...]:
    """Read a node that takes, or gives, a tensor whose samples are elsewhere.

    Raises:
        UnsupportedNode: it works on samples.
    """
    x = next(value for value in node.inputs if isinstance(value, (Tensor, Permuted)))
    groups = _groups_of(x)
    match node.kind:
        case "Transpose":
            return _transposed(r, node, x, groups)
        case "Reshape":
            return _regrouped(r, node, x, _joined(groups, wanted_sizes(node), r.batch))
        case "Squeeze" | "Unsqueeze":
            return _regrouped(r, node, x, _with_ones(node, groups))
        case "Shape":
            return ShapeValue(tuple(map(_size, groups))[node.get("start", 0) : node.get("end", len(groups))])
        case "Gather" | "GatherND":
            return _entries(r, node, x, groups)
        case "Concat":
            return _concatenated(r, node, groups)
        case "Slice":
            return _cut_out(r, node, x, groups)
        case "Split":
            return _pieces(r, node, x, groups)
        case "Flatten":
            axis = node.axis(len(groups), 1)
            before, behind = chain.from_iterable(groups[:axis]), chain.from_iterable(groups[axis:])
            return _regrouped(r, node, x, (tuple(before) or (1,), tuple(behind)))
        case "MatMul" | "Gemm":
            return _product(r, node, x, groups)
        case "GRU" | "LSTM" | "RNN":
            return import_node(r, node)
        case _ if node.kind in ENTRYWISE:
            return _entrywise(r, node, groups, import_node)
        case _:
            raise UnsupportedNode("is given a tensor whose samples are not its first dimension")


def _groups_of(x: Tensor | Permuted) -> Groups:
    if isinstance(x, Permuted):
        return x.groups
    return ((None, *x.shape[: x.joined]), *((size,) for size in x.shape[x.joined :]))


def _shape(groups: Groups) -> tuple[int, ...]:
    """What the layer gives for a sample."""
    return tuple(size for size in chain.from_iterable(groups) if size is not None)


def joined_samples(x: Tensor | Permuted) -> bool:
    """Whether a dimension of the file's tensor holds the samples and something else."""
    return any(None in group and len(group) > 1 for group in _groups_of(x))


def plain_shape(x: Tensor | Permuted) -> tuple[int, ...]:
    """What the layer of a tensor gives for a sample, wherever the samples are in the file's tensor."""
    return _shape(_groups_of(x)) or (1,)


def _plain(x: Tensor | Permuted) -> Tensor:
    return Tensor(x.layer, _shape(_groups_of(x)), type=x.type)


def _size(group: tuple[int | None, ...]) -> int | None:
    """A size of the file's tensor: None where it is the number of samples, MULTIPLE where it is one of that."""
    known = [size for size in group if size is not None]
    return prod(known) if len(known) == len(group) else None if prod(known) == 1 else MULTIPLE


def _merged(group: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The same with neighbours that are not the samples as one."""
    parts = [(samples, list(run)) for samples, run in groupby(group, lambda size: size is None)]
    return tuple(None if samples else prod(size for size in run if size is not None) for samples, run in parts)


def _regrouped(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> Tensor | Permuted:
    """x with other groups of the same entries in the same order."""
    groups = tuple(map(_merged, groups))
    y = r.reshaped(_plain(x), _shape(groups), node)
    return _settled(y, groups)


def _settled(y: Tensor, groups: Groups) -> Tensor | Permuted:
    """A tensor with its samples first, alone or joined with others, where they are there."""
    first, *others = groups
    if first[0] is None and all(len(group) == 1 for group in others):
        return replace(y, joined=len(first) - 1)
    return Permuted(y.layer, groups)


def _transposed(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> Tensor | Permuted:
    perm = node.perm(len(groups))
    places = iter(range(len(_shape(groups))))
    numbered = [[None if size is None else next(places) for size in group] for group in groups]
    axes = [place for axis in perm for place in numbered[axis] if place is not None]
    y = _plain(x)
    if axes != sorted(axes):
        y = r.layer(TensorPermute, node, y, axes=axes)
    return _settled(y, tuple(groups[axis] for axis in perm))


def _joined(groups: Groups, wanted: list[int | None], batch: int | None) -> Groups:
    """How a Reshape groups the same entries."""
    left = deque(size for size in chain.from_iterable(groups) if size != 1)
    kept = [_size(groups[i]) if size == 0 and i < len(groups) else size for i, size in enumerate(wanted)]
    unknown = [i for i, size in enumerate(kept) if size in (-1, MULTIPLE)]
    if len(unknown) > 1:
        raise UnsupportedNode(f"makes {wanted}, which can be done in several ways")
    end = unknown[0] if unknown else len(kept)
    front = [_taken(left, size, batch) for size in kept[:end]]
    left.reverse()
    back = [_taken(left, size, batch)[::-1] for size in reversed(kept[end + 1 :])]
    left.reverse()
    if left and not unknown:
        raise UnsupportedNode(f"makes {wanted} of other sizes")
    return (*front, *([tuple(left) or (1,)] if unknown else []), *reversed(back))


def _taken(left: deque[int | None], size: int | None, batch: int | None) -> tuple[int | None, ...]:
    """Take so many entries from what is left."""
    group: list[int | None] = []
    needed = 0 if size is None else size
    if left and left[0] is None and (size is None or size == batch):
        left.popleft()
        return (None,)
    while needed != 1:
        one = left.popleft() if left else 1
        own = batch if one is None else one
        if one is None and own == 1:  # a file for one sample
            group.append(None)
            continue
        if own is None or own == 1 or not needed or (needed % own and (one is None or own % needed)):
            raise UnsupportedNode(f"joins samples with other dimensions, or takes {size} of other sizes")
        if needed % own:
            left.appendleft(own // needed)
            own = one = needed
        group.append(one)
        needed //= own
    return tuple(group) or (1,)


def _with_ones(node: Node, groups: Groups) -> Groups:
    """Without dimensions of one entry, or with more of them."""
    if node.kind == "Squeeze":
        gone = set(node.axes(1, len(groups)) or (i for i, one in enumerate(groups) if one == (1,)))
        if any(groups[axis] != (1,) for axis in gone):
            raise UnsupportedNode("takes away a dimension that is not 1")
        return tuple(group for i, group in enumerate(groups) if i not in gone)
    new, rest = new_axes(node, len(groups)), iter(groups)
    return tuple((1,) if i in new else next(rest) for i in range(len(groups) + len(new)))


def _concatenated(r: GraphImporter, node: Node, groups: Groups) -> Tensor | Permuted:
    """Tensors one after the other along a dimension that is not the samples'."""
    axis = node.axis(len(groups), 0)
    parts = [value for value in node.inputs if isinstance(value, (Tensor, Permuted))]
    each = [_groups_of(part) for part in parts]
    alike = all(one[:axis] + one[axis + 1 :] == groups[:axis] + groups[axis + 1 :] for one in each)
    if len(parts) < len(node.inputs) or not alike or len(groups[axis]) != 1 or groups[axis] == (None,):
        raise UnsupportedNode("joins along the samples, or tensors that have them in different places")
    y = r.layer(Concatenation, node, *map(_plain, parts), axis=len(_shape(groups[:axis])))
    whole = sum(size or 0 for one in each for size in one[axis])
    return _settled(y, (*groups[:axis], (whole,), *groups[axis + 1 :]))


def _cut_out(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> Tensor | Permuted:
    """Pieces along dimensions that are not the samples'."""
    bounds = [node.ints(i, name) or () for i, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    begins, ends, axes, steps = bounds
    steps, axes = steps or (1,) * len(begins), axes or tuple(range(len(begins)))
    if not len(begins) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise UnsupportedNode("has starts, ends, axes and steps of different lengths, or a step of 0")
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        if not -len(groups) <= axis < len(groups):
            raise UnsupportedNode(f"has axis {axis}, and its input has {len(groups)} dimensions")
        place = axis % len(groups)
        group = groups[place]
        if len(group) != 1 or group[0] is None:
            raise UnsupportedNode("cuts along the samples")
        left = range(group[0])[begin:end:step]
        y = picked(r, node, _plain(x), len(_shape(groups[:place])), left)
        groups = (*groups[:place], (len(left),), *groups[place + 1 :])
        x = _settled(y, groups)
    return x


def _pieces(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> tuple[Tensor | Permuted, ...]:
    """Pieces one after the other along a dimension that is not the samples'."""
    place = node.axis(len(groups), 0)
    size, *others = groups[place]
    if size is None or others:
        raise UnsupportedNode("cuts along the samples")
    made: list[Tensor | Permuted] = []
    for i, (begin, end) in enumerate(piece_bounds(node, size)):
        part = replace(node, name=f"{node.name}/{i}")
        y = picked(r, part, _plain(x), len(_shape(groups[:place])), range(begin, end))
        made.append(_settled(y, (*groups[:place], (end - begin,), *groups[place + 1 :])))
    return tuple(made)


def _entries(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> Tensor | Permuted:
    """Entries at constant places along a dimension, or with GatherND along the first ones together."""
    places, count = node.fixed(1).array, 1
    axis = node.axis(len(groups), 0)
    if places.dtype.kind not in "iu" or not places.size:
        raise UnsupportedNode(f"takes entries at {places.size} places of {places.dtype}")
    if node.kind == "GatherND":
        axis, count = 0, (places.shape or (0,))[-1]
        if not 1 <= count <= len(groups):
            raise UnsupportedNode(f"takes entries along {count} of {len(groups)} dimensions")
    sizes = [group[0] for group in groups[axis : axis + count] if len(group) == 1 and group[0] is not None]
    if len(sizes) < count or node.get("batch_dims", 0):
        raise UnsupportedNode("takes entries along the samples")
    if node.kind == "GatherND":
        lines = [
            np.where(one < 0, one + size, one) for one, size in zip(np.moveaxis(places, -1, 0), sizes, strict=True)
        ]
        if any(((line < 0) | (line >= size)).any() for line, size in zip(lines, sizes, strict=True)):
            raise UnsupportedNode("takes places outside its input")
        places = np.ravel_multi_index(lines, sizes)
    found = np.where(places < 0, places + prod(sizes), places)
    if ((found < 0) | (found >= prod(sizes))).any():
        raise UnsupportedNode(f"takes places outside 0 to {prod(sizes) - 1}")
    before, behind = groups[:axis], groups[axis + count :]
    y = r.reshaped(_plain(x), _shape((*before, (prod(sizes),), *behind)), f"{node.name}/line")
    y = picked(r, node, y, len(_shape(before)), found.reshape(-1))
    left = (*before, *((size,) for size in places.shape), *behind)
    return _settled(r.reshaped(y, _shape(left), f"{node.name}/shape"), left)


def _product(r: GraphImporter, node: Node, x: Tensor | Permuted, groups: Groups) -> Tensor | Permuted:
    """A product of the last dimension with a constant matrix."""
    matrix, others, last = node.given(1), groups[:-1], groups[-1]
    if r.batch == 1 and others and last[0] is None and len(last) > 1:
        # One sample between two dimensions is as good as part of the first as of the second.
        others, last = (*others[:-1], (*others[-1], None)), last[1:]
    if not isinstance(matrix, ConstantValue) or matrix.array.ndim != 2 or len(last) != 1 or last == (None,):
        raise UnsupportedNode("multiplies along the samples")
    if any(node.get(name, 1.0) != 1 for name in ("alpha", "beta")) or node.get("transA", 0):
        raise UnsupportedNode("has transA, alpha or beta of its own")
    turned, bias = bool(node.get("transB", 0)), node.given(2) if node.kind == "Gemm" else None
    y = fully_connected(r, node, _plain(x), matrix, not turned, bias)
    return _settled(y, (*others, y.shape[-1:]))


def _entrywise(r: GraphImporter, node: Node, groups: Groups, import_node: NodeImporter) -> Tensor | Permuted:
    """The same for each entry, with the samples in one place in all tensors; constants are the same for all samples."""
    each = [_groups_of(one) for one in node.inputs if isinstance(one, (Tensor, Permuted))]
    dims = max(map(len, each))
    wide = [((1,),) * (dims - len(one)) + one for one in each]
    columns = list(zip(*wide, strict=True))
    groups = tuple(max(column, key=_width) for column in columns)
    if any(
        {*column} - {group, (1,)} or (None in group and (1,) in column)
        for column, group in zip(columns, groups, strict=True)
    ):
        raise UnsupportedNode("brings together dimensions of samples with others")
    inputs: list[Value | None] = []
    for value in node.inputs:
        if isinstance(value, (Tensor, Permuted)):
            form = ((1,),) * (dims - len(_groups_of(value))) + _groups_of(value)
            y = r.reshaped(_plain(value), _shape(form), f"{node.name}/aligned")
            inputs.append(r.widened(y, _shape(groups), node))
        elif isinstance(value, ConstantValue) and value.array.size > 1:
            inputs.append(_constant(r, value, groups))
        else:
            inputs.append(value)
    y = import_node(r, replace(node, inputs=tuple(inputs)))
    if not isinstance(y, Tensor) or y.shape != _shape(groups):
        raise UnsupportedNode("changes the shape of a tensor whose samples are not its first dimension")
    return _settled(y, groups)


def _width(group: tuple[int | None, ...]) -> tuple[bool, int]:
    return None in group, prod(size for size in group if size is not None)


def _constant(r: GraphImporter, fixed: ConstantValue, groups: Groups) -> ConstantValue:
    """A constant in the dimensions of the layer that it is combined with."""
    if fixed.array.ndim > len(groups):
        raise UnsupportedNode("has fewer dimensions than a constant that it is combined with")
    own = (1,) * (len(groups) - fixed.array.ndim) + fixed.array.shape
    if any(size != 1 and len(group) > 1 for size, group in zip(own, groups, strict=True)):
        raise UnsupportedNode("brings together dimensions of samples with others")
    shape = [size for size, group in zip(own, groups, strict=True) for one in group if one is not None]
    array = fixed.array.reshape(own)
    for axis in reversed([i for i, group in enumerate(groups) if group == (None,)]):
        array = r.of_any_sample(array, axis)
    while len(shape) > fixed.array.ndim and shape[0] == 1:
        del shape[0]
    return ConstantValue(array.reshape(shape), fixed.name)
