"""Reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import Abs, Argmax, Argmin, Equal, Log, Select, Sort, Sqrt, Square
from descend.onnx.importers.steps import cut, log_sum_exp, own_axis, reduced
from descend.onnx.registry import imports
from descend.onnx.values import ConstantValue, Node, Tensor, UnsupportedNode, Value

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter


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
