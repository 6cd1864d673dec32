"""Products with matrices and of matrices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from descend.graph import ChannelwiseFullyConnected, FullyConnected, MatMul
from descend.lower.onnx.reader import Fixed, Node, Reader, Refused, Tensor, Value, reads

__all__ = ["fully_connected"]


@reads("Gemm")
def gemm(r: Reader, node: Node) -> Value:
    """FullyConnected."""
    x, matrix = node.tensor(0, 1), node.fixed(1)
    if node.get("transA", 0) or node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1:
        raise Refused("has transA, alpha or beta of its own")
    return fully_connected(r, node, x, matrix, not node.get("transB", 0), node.given(2))


def fully_connected(
    r: Reader, node: Node, x: Tensor, matrix: Fixed, inputs_first: bool, bias: Value | None = None
) -> Tensor:
    """A product of the last dimension of x with a matrix."""
    if matrix.base is not None and r.turned(Fixed(matrix.array.T, matrix.base)):
        matrix, inputs_first = Fixed(matrix.array.T, matrix.base), not inputs_first
    turned = r.turned(matrix)
    transpose = inputs_first is not turned
    neurons = matrix.array.shape[1 if inputs_first else 0]
    weights = [r.weights(matrix, f"{node.name}/matrix", column_major=True, turned=turned)]
    if bias is not None:
        if not isinstance(bias, Fixed):
            raise Refused("computes its bias from the data")
        whole = np.broadcast_to(bias.array.reshape(-1), (neurons,))
        weights.append(r.weights(Fixed(whole, bias.name), f"{node.name}/bias"))
    if len(x.shape) == 1:
        kept: dict[str, Any] = {"num_neurons": neurons, "has_bias": bias is not None, "transpose": transpose}
        return r.layer(FullyConnected, node, x, weights=weights, **kept)
    rows = r.reshaped(x, (prod(x.shape[:-1]), x.shape[-1]), f"{node.name}/rows")
    kept = {"output_channel_dims": neurons, "bias": bias is not None, "transpose": transpose}
    y = r.layer(ChannelwiseFullyConnected, node, rows, weights=weights, **kept)
    return r.reshaped(y, (*x.shape[:-1], neurons), f"{node.name}/stacked")


@reads("MatMul")
def matmul(r: Reader, node: Node) -> Value:
    """A product with a constant matrix, or of two tensors."""
    a, b = node.inputs
    if isinstance(a, Tensor) and isinstance(b, Fixed) and b.array.ndim == 2:
        return fully_connected(r, node, node.tensor(0), b, inputs_first=True)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        raise Refused("computes with the number of samples")
    dims = max(len(one.shape) for one in (a, b) if isinstance(one, Tensor))
    left, right = (r.as_tensor(one, node, dims) for one in (a, b))
    if len(left.shape) != len(right.shape) or dims < 2:
        raise Refused(f"multiplies (samples, {left.shape}) with (samples, {right.shape})")
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (_stacked(r, node, r.widened(one, (*stack, *one.shape[-2:]), node)) for one in (left, right))
    y = r.layer(MatMul, node, left, right)
    return r.reshaped(y, (*stack, *y.shape[-2:]), f"{node.name}/stacked")


def _stacked(r: Reader, node: Node, x: Tensor) -> Tensor:
    """At most one dimension before the rows and columns."""
    return x if len(x.shape) < 4 else r.reshaped(x, (prod(x.shape[:-2]), *x.shape[-2:]), node)
