"""Reductions."""

from __future__ import annotations

from descend.graph import Abs, Argmax, Argmin, Sqrt, Square
from descend.lower.onnx.reader import Node, Reader, Refused, Tensor, Value, reads
from descend.lower.onnx.readings.steps import own_axis, reduced


@reads("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
def reduction(r: Reader, node: Node) -> Value:
    """MultiDimReduction."""
    x = node.tensor()
    axes = node.ints(1, "axes")
    if axes is None:
        raise Refused("reduces over the samples")
    mode = {"ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "product"}.get(node.kind, "sum")
    if node.kind in ("ReduceL2", "ReduceSumSquare"):
        x = r.layer(Square, f"{node.name}/square", x)
    elif node.kind == "ReduceL1":
        x = r.layer(Abs, f"{node.name}/abs", x)
    y = reduced(r, node, x, mode, axes, bool(node.get("keepdims", 1)))
    return r.layer(Sqrt, f"{node.name}/root", y) if node.kind == "ReduceL2" else y


@reads("ArgMax", "ArgMin")
def extremum(r: Reader, node: Node) -> Value:
    """Argmax or Argmin of one dimension."""
    x = node.tensor(0, 1)
    own_axis(node.get("axis", 0), 1)
    if node.get("select_last_index", 0):
        raise Refused("takes the last of equal entries, and the first is taken here")
    y = r.layer(Argmax if node.kind == "ArgMax" else Argmin, node, x)
    return y if node.get("keepdims", 1) else Tensor(y.layer, ())
