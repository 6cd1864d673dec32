"""Products with matrices and of matrices."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import (
    Abs,
    Argmax,
    Argmin,
    ChannelwiseFullyConnected,
    Equal,
    FullyConnected,
    Log,
    MatMul,
    Select,
    Sort,
    Sqrt,
    Square,
    TensorPermute,
)
from descend.onnx.graph_importer import imports
from descend.onnx.importers.elementwise import chosen
from descend.onnx.importers.steps import cut, log_sum_exp, own_axis, picked, reduced, together
from descend.onnx.values import ConstantValue, Node, Tensor, UnsupportedNode, Value, text

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter

__all__ = ["along", "fully_connected"]


@imports("Gemm")
def gemm(r: GraphImporter, node: Node) -> Value:
    """FullyConnected."""
    x, matrix = node.tensor(0, 1), node.fixed(1)
    if node.get("transA", 0) or node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1:
        raise UnsupportedNode("has transA, alpha or beta of its own")
    return fully_connected(r, node, x, matrix, not node.get("transB", 0), node.given(2))


def fully_connected(
    r: GraphImporter, node: Node, x: Tensor, matrix: ConstantValue, inputs_first: bool, bias: Value | None = None
) -> Tensor:
    """A product of the last dimension of x with a matrix."""
    if matrix.base is not None and r.turned(ConstantValue(matrix.array.T, matrix.base)):
        matrix, inputs_first = ConstantValue(matrix.array.T, matrix.base), not inputs_first
    turned = r.turned(matrix)
    transpose = inputs_first is not turned
    if matrix.array.ndim != 2:
        raise UnsupportedNode(f"multiplies with an array of {matrix.array.ndim} dimensions, where a matrix is needed")
    neurons = matrix.array.shape[1 if inputs_first else 0]
    weights = [r.weights(matrix, f"{node.name}/matrix", column_major=True, turned=turned)]
    if bias is not None:
        if not isinstance(bias, ConstantValue):
            raise UnsupportedNode("computes its bias from the data")
        if bias.array.size not in (1, neurons):
            raise UnsupportedNode(f"adds {bias.array.size} numbers to a product of {neurons}")
        whole = np.broadcast_to(bias.array.reshape(-1), (neurons,))
        weights.append(r.weights(ConstantValue(whole, bias.name), f"{node.name}/bias"))
    if len(x.shape) == 1:
        kept: dict[str, Any] = {"num_neurons": neurons, "has_bias": bias is not None, "transpose": transpose}
        return r.layer(FullyConnected, node, x, weights=weights, **kept)
    rows = r.reshaped(x, (prod(x.shape[:-1]), x.shape[-1]), f"{node.name}/rows")
    kept = {"output_channel_dims": neurons, "bias": bias is not None, "transpose": transpose}
    y = r.layer(ChannelwiseFullyConnected, node, rows, weights=weights, **kept)
    return r.reshaped(y, (*x.shape[:-1], neurons), f"{node.name}/stacked")


@imports("MatMul")
def matmul(r: GraphImporter, node: Node) -> Value:
    """A product with a constant matrix, or of two tensors."""
    a, b = node.given(0), node.given(1)
    if isinstance(a, Tensor) and isinstance(b, ConstantValue) and b.array.ndim == 2:
        return fully_connected(r, node, node.tensor(0), b, inputs_first=True)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        raise UnsupportedNode("computes with the number of samples")
    if any(isinstance(one, Tensor) and not one.shape for one in (a, b)):
        raise UnsupportedNode("multiplies along the samples")
    if isinstance(b, ConstantValue) and b.array.ndim == 1:
        y = fully_connected(r, node, node.tensor(0), ConstantValue(b.array[:, None], b.name), inputs_first=True)
        return r.reshaped(y, y.shape[:-1], f"{node.name}/numbers")
    dims = max(len(one.shape) for one in (a, b) if isinstance(one, Tensor))
    left, right = (r.as_tensor(one, node, dims) for one in (a, b))
    if len(left.shape) != len(right.shape) or dims < 2:
        raise UnsupportedNode(f"multiplies (samples, {left.shape}) with (samples, {right.shape})")
    stack = together(left.shape[:-2], right.shape[:-2])
    left, right = (_stacked(r, node, r.widened(one, (*stack, *one.shape[-2:]), node)) for one in (left, right))
    y = r.layer(MatMul, node, left, right)
    return r.reshaped(y, (*stack, *y.shape[-2:]), f"{node.name}/stacked")


def _stacked(r: GraphImporter, node: Node, x: Tensor) -> Tensor:
    """At most one dimension before the rows and columns."""
    return x if len(x.shape) < 4 else r.reshaped(x, (prod(x.shape[:-2]), *x.shape[-2:]), node)


def along(r: GraphImporter, node: Node, x: Tensor, axis: int, matrix: np.ndarray[Any, Any]) -> Tensor:
    """x with each of its lines along an axis times a matrix (entries before, entries after) that is not trained."""
    others = [one for one in range(len(x.shape)) if one != axis]
    if axis != len(x.shape) - 1:
        x = r.layer(TensorPermute, f"{node.name}/last{axis}", x, axes=[*others, axis])
    part = replace(node, name=f"{node.name}/along{axis}")
    y = fully_connected(r, part, x, ConstantValue(matrix.astype(np.float32)), inputs_first=True)
    back = [*range(axis), len(others), *range(axis, len(others))]
    return y if axis == len(others) else r.layer(TensorPermute, f"{node.name}/back{axis}", y, axes=back)


@imports("CumSum", integers="computed")
def cumulative(r: GraphImporter, node: Node) -> Value:
    """A product with a triangle of ones."""
    x = node.tensor()
    axis = own_axis(node.integer(1), len(x.shape))
    r.budget.array(x.shape[axis], x.shape[axis])
    ones = np.triu(np.ones((x.shape[axis],) * 2), 1 if node.get("exclusive", 0) else 0)
    ones = ones.T if node.get("reverse", 0) else ones
    if not node.integers:
        return along(r, node, x, axis, ones)
    behind = (1,) * (len(x.shape) - axis - 1)
    wide = r.reshaped(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]), f"{node.name}/apart")
    kept = chosen(r, replace(node, name=f"{node.name}/kept"), (ones != 0).reshape(*ones.shape, *behind), wide)
    y = reduced(r, replace(node, integers=""), kept, "sum", (axis + 1,), keep=False)
    return r.formatted(y, node.integers, f"{node.name}/wrapped")


@imports("Einsum")
def einsum(r: GraphImporter, node: Node) -> Value:
    """Diagonals and sums over dimensions of one tensor, products of two as one of matrices, then a TensorPermute.

    Dimensions that two have and that are wanted later are a stack of matrices, those that are not are summed.
    """
    *given, result = _letters(node)
    samples = next(one for one, value in zip(given, node.inputs, strict=True) if isinstance(value, Tensor))[:1]
    for letters, value in zip(given, node.inputs, strict=True):
        if len(letters) != _dims(value):
            raise UnsupportedNode(f"has the letters '{letters}' for a tensor of {_dims(value)} dimensions")
    parts: list[tuple[Tensor, str]] = []
    for place, (letters, value) in enumerate(zip(given, node.inputs, strict=True)):
        if isinstance(value, Tensor) is not (letters[:1] == samples) or result[:1] != samples:
            raise UnsupportedNode("has the samples elsewhere than in the first dimension of what depends on them")
        own = letters.replace(samples, "")
        if len(letters) - len(own) > 1:
            raise UnsupportedNode("takes a diagonal through the samples")
        x = r.as_tensor(value, node, len(own))
        x, own = _diagonal(r, node, x if own else r.reshaped(x, (), node), own)
        others = "".join(given[:place] + given[place + 1 :]) + result
        gone = [i for i, one in enumerate(own) if one not in others]
        parts.append((_summed(r, node, x, gone), "".join(one for i, one in enumerate(own) if i not in gone)))
    y, letters = parts[0]
    for place, part in enumerate(parts[1:], 2):
        y, letters = _product(r, node, (y, letters), part, result + "".join(one for _, one in parts[place:]))
    return _ordered(r, f"{node.name}/result", y, letters, result[1:])


def _diagonal(r: GraphImporter, node: Node, x: Tensor, letters: str) -> tuple[Tensor, str]:
    """The entries where dimensions of one letter have one place, and the letters that are left."""
    while twice := next((one for one in letters if letters.count(one) > 1), None):
        first, second = letters.index(twice), letters.rindex(twice)
        size, rest = x.shape[first], [i for i in range(len(letters)) if i not in (first, second)]
        if x.shape[second] != size:
            raise UnsupportedNode("brings together dimensions of different sizes")
        if rest:
            x = r.layer(TensorPermute, f"{node.name}/pair", x, axes=[first, second, *rest])
        others = x.shape[2:]
        x = r.reshaped(x, (size * size, *others), f"{node.name}/line")
        r.budget.array(size)
        x = picked(r, replace(node, name=f"{node.name}/diagonal"), x, 0, np.arange(size) * (size + 1))
        letters = twice + "".join(letters[i] for i in rest)
    return x, letters


def _letters(node: Node) -> list[str]:
    """The letters of each tensor and of the result, without an ellipsis."""
    equation = text(node.get("equation", "")).replace(" ", "")
    before, arrow, result = equation.partition("->")
    terms = before.split(",")
    if not arrow:
        result = "".join(sorted(one for one in set(before) - {",", "."} if before.count(one) == 1))
        result = "..." * ("..." in before) + result
    if len(terms) != len(node.inputs):
        raise UnsupportedNode(f"has equation '{equation}' for {len(terms)} tensors, and takes {len(node.inputs)}")
    free = [one for one in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if one not in equation]
    wide = [_dims(value) - len(one.replace("...", "")) for one, value in zip(terms, node.inputs, strict=True)]
    spread = ["".join(free[max(wide) - count : max(wide)]) for count in wide]
    filled = [one.replace("...", more) for one, more in zip(terms, spread, strict=True)]
    return [*filled, result.replace("...", "".join(free[: max(wide)]))]


def _dims(value: Value | None) -> int:
    """The dimensions of the file's tensor."""
    if isinstance(value, Tensor):
        return len(value.shape) + 1
    if isinstance(value, ConstantValue):
        return value.array.ndim
    raise UnsupportedNode("computes with the number of samples")


def _summed(r: GraphImporter, node: Node, x: Tensor, axes: list[int]) -> Tensor:
    return reduced(r, node, x, "sum", tuple(axis + 1 for axis in axes), keep=False) if axes else x


def _product(
    r: GraphImporter, node: Node, a: tuple[Tensor, str], b: tuple[Tensor, str], wanted: str
) -> tuple[Tensor, str]:
    """The product of two tensors with letters, and its letters; those that are not wanted are summed over."""
    sizes = {one: size for x, letters in (a, b) for one, size in zip(letters, x.shape, strict=True)}
    both = [one for one in a[1] if one in b[1]]
    stack, summed = "".join(one for one in both if one in wanted), "".join(one for one in both if one not in wanted)
    rows, columns = ("".join(one for one in letters if one not in both) for letters in (a[1], b[1]))
    for x, letters in (a, b):
        if any(sizes[one] != size for one, size in zip(letters, x.shape, strict=True)):
            raise UnsupportedNode("brings together dimensions of different sizes")
    count = {group: prod(sizes[one] for one in group) for group in (stack, rows, summed, columns)}
    left = _ordered(r, f"{node.name}/left", *a, stack + rows + summed)
    right = _ordered(r, f"{node.name}/right", *b, stack + summed + columns)
    left = r.reshaped(left, (count[stack], count[rows], count[summed]), f"{node.name}/rows")
    right = r.reshaped(right, (count[stack], count[summed], count[columns]), f"{node.name}/columns")
    letters = stack + rows + columns
    return r.reshaped(
        r.layer(MatMul, node, left, right), tuple(sizes[one] for one in letters), f"{node.name}/whole"
    ), letters


def _ordered(r: GraphImporter, name: str, x: Tensor, letters: str, wanted: str) -> Tensor:
    """x with its dimensions in the order of `wanted`."""
    if sorted(letters) != sorted(wanted):
        raise UnsupportedNode("has a result with letters that its tensors do not have")
    return x if letters == wanted else r.layer(TensorPermute, name, x, axes=[letters.index(one) for one in wanted])


# ---- reductions

_MODES = {
    "ReduceL1": "magnitudes",
    "ReduceL2": "norm",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "product",
    "ReduceSum": "sum",
    "ReduceSumSquare": "squares",
}


@imports(*_MODES, integers="computed")
@imports("ReduceLogSum", "ReduceLogSumExp")
def reduction(r: GraphImporter, node: Node) -> Value:
    """MultiDimReduction."""
    x = node.tensor()
    axes = node.axes(1, len(x.shape) + 1)
    if not axes and node.get("noop_with_empty_axes", 0):
        raise UnsupportedNode("reduces nothing (noop_with_empty_axes)")
    if not axes:
        raise UnsupportedNode("reduces over the samples")
    if node.kind == "ReduceLogSumExp":
        return log_sum_exp(r, node, x, axes, bool(node.get("keepdims", 1)))
    mode = _MODES.get(node.kind, "sum")
    if node.integers:
        return reduced(r, node, x, mode, axes, bool(node.get("keepdims", 1)))
    mode = mode if mode in ("max", "mean", "min", "product") else "sum"
    if node.kind in ("ReduceL2", "ReduceSumSquare"):
        x = r.layer(Square, f"{node.name}/square", x)
    elif node.kind == "ReduceL1":
        x = r.layer(Abs, f"{node.name}/abs", x)
    y = reduced(r, node, x, mode, axes, bool(node.get("keepdims", 1)))
    last = {"ReduceL2": Sqrt, "ReduceLogSum": Log}.get(node.kind)
    return y if last is None else Tensor(r.layer(last, f"{node.name}/last", y).layer, y.shape)


@imports("ArgMax", "ArgMin", integers="computed")
def extremum(r: GraphImporter, node: Node) -> Value:
    """Argmax or Argmin; of several dimensions, the first or last place along one of them that holds the extremum."""
    x, last = node.tensor(), bool(node.get("select_last_index", 0))
    axis = own_axis(node.get("axis", 0), len(x.shape))
    if len(x.shape) == 1 and not last:
        y = r.layer(Argmax if node.kind == "ArgMax" else Argmin, node, x)
        return y if node.get("keepdims", 1) else Tensor(y.layer, ())
    part = replace(node, name=f"{node.name}/value")
    best = reduced(r, part, x, "max" if node.kind == "ArgMax" else "min", (axis + 1,), keep=True)
    there = r.layer(Equal, f"{node.name}/there", x, r.widened(best, x.shape, node))
    r.budget.array(x.shape[axis])
    line = np.arange(x.shape[axis], dtype=np.float32).reshape(-1, *(1,) * (len(x.shape) - axis - 1))
    places = r.widened(
        r.reshaped(r.as_tensor(ConstantValue(line), node, line.ndim), (1,) * axis + line.shape, node), x.shape, node
    )
    own: dict[str, Any] = {"value": 1.0, "epsilon": 0.5, "constant_if_false": True}
    found = r.layer(Select, f"{node.name}/places", there, places, value_if_false=-1.0 if last else line.size, **own)
    return reduced(r, node, found, "max" if last else "min", (axis + 1,), bool(node.get("keepdims", 1)))


@imports("TopK", integers="computed")
def largest(r: GraphImporter, node: Node) -> tuple[Value | None, ...]:
    """The first entries of a Sort; of places that of the first alone, because a Sort does not say where its entries
    were."""
    x, count = node.tensor(0, 1), node.integer(1)
    own_axis(node.get("axis", -1), 1)
    falling = bool(node.get("largest", 1))
    if not 1 <= count <= x.shape[0]:
        raise UnsupportedNode(f"takes {count} of {x.shape[0]} entries")
    if node.takes(1) and count > 1:
        raise UnsupportedNode("hands out the places of several entries, and Sort gives their values alone")
    place = r.layer(Argmax if falling else Argmin, f"{node.name}/place", x) if node.takes(1) else None
    if not node.takes(0):
        return None, place
    return cut(r, f"{node.name}/first", r.layer(Sort, node, x, descending=falling), 0, 0, count), place
