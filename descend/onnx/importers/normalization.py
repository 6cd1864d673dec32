"""Normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import BatchNormalization, ChannelwiseScaleBias, InstanceNorm, LayerNorm, LocalResponseNormalization
from descend.onnx.importers.steps import nonzero, together
from descend.onnx.registry import imports
from descend.onnx.values import ConstantValue, Node, UnsupportedNode, Value

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter


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
