"""Layers with matrices, kernels and tables."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

import onnx

from descend.graph import (
    GRU,
    ChannelwiseFullyConnected,
    ChannelwiseScaleBias,
    Convolution,
    Deconvolution,
    DistEmbedding,
    Embedding,
    EntrywiseScaleBias,
    FullyConnected,
    MatMul,
)
from descend.onnx.graph_exporter import exports

if TYPE_CHECKING:
    from descend.graph import PlannedLayer
    from descend.onnx.graph_exporter import GraphExporter

__all__ = ["whole_indices"]


@exports(FullyConnected)
def fully_connected(w: GraphExporter, planned: PlannedLayer, x: str, *weights: str) -> str:
    """Gemm of the flattened sample."""
    rows = x if len(planned.input_shapes[0]) == 1 else w.flat(x)
    return w("Gemm", rows, *weights, transB=0 if planned.layer.setting("transpose") else 1)


@exports(ChannelwiseFullyConnected)
def channelwise_fully_connected(
    w: GraphExporter, planned: PlannedLayer, x: str, matrix: str, bias: str | None = None
) -> str:
    """MatMul of every slice, flattened, with the transposed matrix."""
    channels, *rest = planned.input_shapes[0]
    rows = x if len(rest) == 1 else w.reshaped(x, channels, prod(rest))
    y = w("MatMul", rows, matrix if planned.layer.setting("transpose") else w("Transpose", matrix, perm=(1, 0)))
    y = y if bias is None else w("Add", y, bias)
    return y if len(planned.output_shape) == 2 else w.reshaped(y, *planned.output_shape)


@exports(ChannelwiseScaleBias, EntrywiseScaleBias)
def scale_bias(w: GraphExporter, planned: PlannedLayer, x: str, weights: str) -> str:
    """a x + b from the two columns of the weights."""
    shape = planned.output_shape
    if isinstance(planned.layer, ChannelwiseScaleBias):
        shape = (shape[0], *(1,) * (len(shape) - 1))
    scale, bias = (w("Reshape", w("Gather", weights, w.ints(column), axis=1), w.ints(1, *shape)) for column in (0, 1))
    return w("Add", w("Mul", x, scale), bias)


@exports(Convolution)
def convolution(w: GraphExporter, planned: PlannedLayer, x: str, *weights: str) -> str:
    """Conv."""
    layer = cast("Convolution", planned.layer)
    window = layer.window()
    return w(
        "Conv",
        x,
        *weights,
        kernel_shape=window.size,
        strides=window.stride,
        pads=window.padding * 2,
        dilations=window.dilation,
        group=layer.setting("groups"),
    )


@exports(Deconvolution)
def deconvolution(w: GraphExporter, planned: PlannedLayer, x: str, *weights: str) -> str:
    """ConvTranspose."""
    layer = cast("Deconvolution", planned.layer)
    window = layer.window()
    return w(
        "ConvTranspose",
        x,
        *weights,
        kernel_shape=window.size,
        strides=window.stride,
        pads=window.padding * 2,
        dilations=window.dilation,
        output_padding=layer.extra(),
        group=layer.setting("groups"),
    )


@exports(MatMul)
def matmul(w: GraphExporter, planned: PlannedLayer, a: str, b: str) -> str:
    """MatMul, with a Transpose where it is asked for."""
    layer = cast("MatMul", planned.layer)
    turned = (0, 2, 1) if len(planned.output_shape) == 2 else (0, 1, 3, 2)
    a = w("Transpose", a, perm=turned) if layer.transpose_a else a
    b = w("Transpose", b, perm=turned) if layer.transpose_b else b
    return w("MatMul", a, b)


def whole_indices(w: GraphExporter, x: str, count: int) -> tuple[str, str]:
    """Indices that came as numbers, rounded down, 0 where out of range; and whether each is in range."""
    floor = w("Floor", x)
    valid = w("And", w("GreaterOrEqual", floor, w.number(0)), w("Less", floor, w.number(count)))
    return w("Cast", w("Where", valid, floor, w.number(0)), to=onnx.TensorProto.INT64), valid


@exports(Embedding, DistEmbedding)
def embedding(w: GraphExporter, planned: PlannedLayer, x: str, table: str) -> str:
    """Gather of the table's columns, and zeros for an index out of range and for padding."""
    layer = cast("Embedding | DistEmbedding", planned.layer)
    index, valid = whole_indices(w, x, layer.num_embeddings)
    if isinstance(layer, Embedding) and layer.padding_idx is not None:
        valid = w("And", valid, w("Not", w("Equal", index, w.ints(layer.padding_idx))))
    rows = w("Gather", w("Transpose", table, perm=(1, 0)), index, axis=0)
    return w("Where", w("Unsqueeze", valid, w.ints(-1)), rows, w.number(0))


@exports(GRU)
def gru(w: GraphExporter, planned: PlannedLayer, sequence: str, hidden: str, *weights: str) -> str:
    """GRU a layer; ONNX has the gates in the order z, r, n and the sequence before the samples."""
    layer = cast("GRU", planned.layer)
    size, layers = layer.hidden_size, layer.setting("num_layers")
    x = w("Transpose", sequence, perm=(1, 0, 2))
    starts = w("Transpose", w.reshaped(hidden, layers, size), perm=(1, 0, 2))

    def gates(one: str) -> str:
        r, z, n = (w("Slice", one, w.ints(i * size), w.ints((i + 1) * size), w.ints(0)) for i in range(3))
        return w("Concat", z, r, n, axis=0)

    for i in range(layers):
        ih, hh, bias_ih, bias_hh = (gates(one) for one in weights[4 * i : 4 * i + 4])
        bias = w("Unsqueeze", w("Concat", bias_ih, bias_hh, axis=0), w.ints(0))
        matrices = (w("Unsqueeze", one, w.ints(0)) for one in (ih, hh))
        start = w("Slice", starts, w.ints(i), w.ints(i + 1), w.ints(0))
        steps = w("GRU", x, *matrices, bias, "", start, hidden_size=size, linear_before_reset=1)
        x = w("Squeeze", steps, w.ints(1))
    return w("Transpose", x, perm=(1, 0, 2))
