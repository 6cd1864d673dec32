"""Activations with something to set."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import (
    Add,
    AddConstant,
    BatchNormalization,
    ChannelwiseScaleBias,
    ChannelwiseSoftmax,
    Clamp,
    Elu,
    Erf,
    Gelu,
    GreaterConstant,
    InstanceNorm,
    LayerNorm,
    LeakyRelu,
    LocalResponseNormalization,
    LogSoftmax,
    MinConstant,
    Multiply,
    Relu,
    Select,
    Selu,
    Softplus,
    Subtract,
    Tanh,
)
from descend.onnx.graph_importer import imports
from descend.onnx.importers.steps import log_sum_exp, nonzero, times, together
from descend.onnx.values import ConstantValue, Node, Tensor, UnsupportedNode, Value

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter

_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # of a Selu


@imports("LeakyRelu", "Elu", "Selu", "HardSigmoid", "HardSwish", "Gelu", "PRelu")
def activation(r: GraphImporter, node: Node) -> Value:
    """Activations with a number to set."""
    x = node.tensor()
    match node.kind:
        case "LeakyRelu":
            return r.layer(LeakyRelu, node, x, negative_slope=nonzero(node, "alpha", node.get("alpha", 0.01)))
        case "PRelu":
            if node.fixed(1).array.size != 1:
                return _prelu(r, node, x)
            return r.layer(LeakyRelu, node, x, negative_slope=nonzero(node, "slope", node.number(1, "slope", 0.0)))
        case "Elu":
            return r.layer(Elu, node, x, alpha=nonzero(node, "alpha", node.get("alpha", 1.0)))
        case "Selu":
            alpha, gamma = node.get("alpha", _ALPHA), node.get("gamma", _GAMMA)
            if math.isclose(alpha, _ALPHA, rel_tol=1e-6) and math.isclose(gamma, _GAMMA, rel_tol=1e-6):
                return r.layer(Selu, node, x)
            inner = r.layer(Elu, f"{node.name}/elu", x, alpha=nonzero(node, "alpha", alpha))
            return times(r, node.name, inner, gamma)
        case "Gelu":
            return r.layer(Gelu, node, x) if node.get("approximate", "none") in ("tanh", b"tanh") else _gelu(r, node, x)
        case _:
            alpha, beta = (1 / 6, 0.5) if node.kind == "HardSwish" else (node.get("alpha", 0.2), node.get("beta", 0.5))
            line = r.layer(AddConstant, f"{node.name}/line", times(r, f"{node.name}/slope", x, alpha), constant=beta)
            gate = r.layer(Clamp, node, line, min=0.0, max=1.0)
            return r.layer(Multiply, node, x, gate) if node.kind == "HardSwish" else gate


def _prelu(r: GraphImporter, node: Node, x: Tensor) -> Tensor:
    """max(x, 0) + slope · min(x, 0), each channel with a slope of its own."""
    below = r.layer(MinConstant, f"{node.name}/below", x, constant=0.0)
    line = r.layer(Multiply, f"{node.name}/line", *r.broadcast(node, below, node.fixed(1)))
    return r.layer(Add, node, r.layer(Relu, f"{node.name}/above", x), line)


@imports("Celu", "Mish")
def smooth(r: GraphImporter, node: Node) -> Value:
    """α Elu(x / α), or x tanh(log(1 + eˣ))."""
    x = node.tensor()
    if node.kind == "Mish":
        gate = r.layer(Tanh, f"{node.name}/gate", r.layer(Softplus, f"{node.name}/softplus", x))
        return r.layer(Multiply, node, x, gate)
    alpha = nonzero(node, "alpha", node.get("alpha", 1.0))
    inner = r.layer(Elu, f"{node.name}/elu", times(r, f"{node.name}/scaled", x, 1 / alpha))
    return times(r, node.name, inner, alpha)


def _gelu(r: GraphImporter, node: Node, x: Tensor) -> Tensor:
    """x (1 + erf(x / √2)) / 2."""
    error = r.layer(Erf, f"{node.name}/erf", times(r, f"{node.name}/scaled", x, math.sqrt(0.5)))
    gate = r.layer(AddConstant, f"{node.name}/gate", error, constant=1.0)
    return r.layer(Multiply, node, times(r, f"{node.name}/half", x, 0.5), gate)


@imports("Softmax", "LogSoftmax")
def softmax(r: GraphImporter, node: Node) -> Value:
    """ChannelwiseSoftmax along a dimension."""
    x = node.tensor()
    if node.rows:
        return _softmax_of_rows(r, node, x)
    axis = node.axis(len(x.shape) + 1, -1) - 1
    if axis < 0:
        raise UnsupportedNode("takes the softmax over samples")
    if node.kind == "LogSoftmax":
        if x.shape[axis] == prod(x.shape):
            return r.layer(LogSoftmax, node, x)
        total = log_sum_exp(r, node, x, (axis + 1,), keep=True)
        return r.layer(Subtract, node, x, r.widened(total, x.shape, node))
    return r.layer(ChannelwiseSoftmax, node, x, dim=axis, single_dim_mode=True)


def _softmax_of_rows(r: GraphImporter, node: Node, x: Tensor) -> Tensor:
    """The softmax over all dimensions from an axis on."""
    axis = node.get("axis", 1) - 1
    if axis < 0:
        raise UnsupportedNode("takes the softmax over samples")
    before, size = x.shape[:axis], prod(x.shape[axis:])
    rows = r.reshaped(x, (*before, size), f"{node.name}/rows")
    y = softmax(r, replace(node, rows=False, attributes={"axis": -1}, inputs=(rows,)))
    if not isinstance(y, Tensor):
        raise UnsupportedNode("takes the softmax of a constant")
    return r.reshaped(y, x.shape, f"{node.name}/whole")


@imports("ThresholdedRelu")
def thresholded_relu(r: GraphImporter, node: Node) -> Value:
    """x where it is above alpha, and 0 elsewhere."""
    x = node.tensor()
    above = r.layer(GreaterConstant, f"{node.name}/above", x, constant=node.get("alpha", 1.0))
    return r.layer(Select, node, above, x, value=1.0, epsilon=0.5, constant_if_false=True)


# ---- normalization


@imports("BatchNormalization")
def batch_normalization(r: GraphImporter, node: Node) -> Value:
    """BatchNormalization; in training it follows this package's formula."""
    if node.get("training_mode", 0) or node.outputs > 1:
        raise UnsupportedNode("is written for training")
    weights = [r.weights(node.fixed(i), f"{node.name}/{i}") for i in range(1, 5)]
    epsilon = nonzero(node, "epsilon", node.get("epsilon", 1e-5))
    return r.layer(
        BatchNormalization, node, node.tensor(), weights=weights, epsilon=epsilon, decay=node.get("momentum", 0.9)
    )


@imports("LayerNormalization")
def layer_normalization(r: GraphImporter, node: Node) -> Value:
    """LayerNorm."""
    x, scale, bias = node.tensor(), node.fixed(1), node.given(2)
    start = node.axis(len(x.shape) + 1, -1) - 1
    if start < 0 or node.outputs > 1:
        raise UnsupportedNode("normalizes over samples, or hands out its statistics")
    form = x.shape[start:]
    pairs = [(scale, "scale"), *([(node.fixed(2), "bias")] if bias is not None else [])]
    for one, what in pairs:
        if together(one.array.shape, form) != form:
            raise UnsupportedNode(f"has a {what} of {one.array.shape} for entries of {form}")
    weights = [
        r.weights(ConstantValue(np.broadcast_to(one.array, form), one.name), f"{node.name}/{what}")
        for one, what in pairs
    ]
    fields: dict[str, Any] = {"scale": True, "bias": bias is not None, "epsilon": node.get("epsilon", 1e-5)}
    return r.layer(LayerNorm, node, x, weights=weights, start_dim=start, **fields)


@imports("InstanceNormalization")
def instance_normalization(r: GraphImporter, node: Node) -> Value:
    """InstanceNorm, then a scale and a bias for each channel."""
    x, scale, bias = node.tensor(), node.fixed(1), node.fixed(2)
    y = r.layer(InstanceNorm, f"{node.name}/norm", x, epsilon=node.get("epsilon", 1e-5))
    if scale.array.shape != x.shape[:1] or bias.array.shape != x.shape[:1]:
        raise UnsupportedNode(
            f"has a scale of {scale.array.shape} and a bias of {bias.array.shape} for {x.shape[0]} channels"
        )
    both = ConstantValue(np.stack([scale.array, bias.array], 1), f"{scale.name}_and_bias" if scale.name else None)
    weights = r.weights(both, f"{node.name}/affine", column_major=True)
    return r.layer(ChannelwiseScaleBias, node, y, weights=[weights])


@imports("LRN")
def local_response_normalization(r: GraphImporter, node: Node) -> Value:
    """LocalResponseNormalization, whose α is not divided by the width."""
    width = node.get("size", 0)
    if width < 1:
        raise UnsupportedNode(f"has size {width}; expected at least 1")
    fields = {
        "lrn_alpha": node.get("alpha", 1e-4) / width,
        "lrn_beta": node.get("beta", 0.75),
        "lrn_k": node.get("bias", 1.0),
    }
    return r.layer(LocalResponseNormalization, node, node.tensor(), window_width=width, **fields)
