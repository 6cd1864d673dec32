"""Activations, normalizations, reductions, losses, and layers without parents."""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx

from descend.graph import (
    BatchNormalization,
    BatchwiseReduceSum,
    Bernoulli,
    CategoricalAccuracy,
    ChannelwiseMean,
    ChannelwiseSoftmax,
    Constant,
    Covariance,
    CrossEntropy,
    Elu,
    EntrywiseBatchNormalization,
    InstanceNorm,
    L1Norm,
    L2Norm2,
    LayerNorm,
    LeakyRelu,
    LocalResponseNormalization,
    LogSoftmax,
    MeanAbsoluteError,
    MeanSquaredError,
    MiniBatchIndex,
    MiniBatchSize,
    MultiDimReduction,
    Reduction,
    Relu,
    RowwiseWeightsNorms,
    Softmax,
    Variance,
    WeightsLayer,
)
from descend.onnx.graph_exporter import exports

if TYPE_CHECKING:
    from descend.graph import PlannedLayer
    from descend.onnx.graph_exporter import GraphExporter


@exports(Relu)
def relu(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Relu."""
    return w("Relu", x)


@exports(LeakyRelu)
def leaky_relu(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """LeakyRelu."""
    return w("LeakyRelu", x, alpha=planned.layer.setting("negative_slope"))


@exports(Elu)
def elu(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Elu."""
    return w("Elu", x, alpha=planned.layer.setting("alpha"))


def over_sample(w: GraphExporter, kind: str, shape: tuple[int, ...], x: str) -> str:
    """A function of the flattened sample, in the sample's shape."""
    return w(kind, x, axis=1) if len(shape) == 1 else w.reshaped(w(kind, w.flat(x), axis=1), *shape)


@exports(LogSoftmax)
def log_softmax(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """LogSoftmax of the flattened sample."""
    return over_sample(w, "LogSoftmax", planned.output_shape, x)


@exports(Softmax)
def softmax(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Softmax, kept above the root of the smallest float."""
    channels = planned.layer.setting("softmax_mode") == "channel"
    y = w("Softmax", x, axis=1) if channels else over_sample(w, "Softmax", planned.output_shape, x)
    return w("Max", y, w.number(math.sqrt(np.finfo(np.float32).tiny)))


@exports(ChannelwiseSoftmax)
def channelwise_softmax(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Softmax over each slice along a dimension, or along that dimension alone."""
    layer, shape = cast("ChannelwiseSoftmax", planned.layer), planned.output_shape
    axis = layer.dim % len(shape)
    if layer.single_dim_mode:
        return w("Softmax", x, axis=axis + 1)
    if axis == 0:
        return w.reshaped(w("Softmax", w.reshaped(x, shape[0], prod(shape[1:])), axis=2), *shape)
    return w.reshaped(w("Softmax", w.reshaped(x, prod(shape[:-1]), shape[-1]), axis=1), *shape)


@exports(BatchNormalization)
def batch_normalization(w: GraphExporter, planned: PlannedLayer, x: str, *weights: str) -> str:
    """BatchNormalization by the running values."""
    return w("BatchNormalization", x, *weights, epsilon=planned.layer.setting("epsilon"))


@exports(EntrywiseBatchNormalization)
def entrywise_batch_normalization(w: GraphExporter, planned: PlannedLayer, x: str, mean: str, variance: str) -> str:
    """(x − mean) / √(variance + ε) by the running values."""
    epsilon = w.number(cast("EntrywiseBatchNormalization", planned.layer).epsilon)
    return w("Div", w("Sub", x, mean), w("Sqrt", w("Add", variance, epsilon)))


@exports(LayerNorm)
def layer_norm(w: GraphExporter, planned: PlannedLayer, x: str, *affine: str) -> str:
    """LayerNormalization."""
    layer, shape = cast("LayerNorm", planned.layer), planned.output_shape
    given = iter(affine)
    scale = next(given) if layer.scale else w.array(np.ones(layer.normalized(shape), np.float32))
    axis = layer.start_dim % len(shape) + 1
    return w("LayerNormalization", x, scale, *given, axis=axis, epsilon=layer.setting("epsilon"))


@exports(InstanceNorm)
def instance_norm(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """LayerNormalization of each channel."""
    shape = planned.output_shape
    size = prod(shape[1:])
    ones = w.array(np.ones(size, np.float32))
    rows = w.reshaped(x, shape[0], size)
    y = w("LayerNormalization", rows, ones, axis=2, epsilon=planned.layer.setting("epsilon"))
    return w.reshaped(y, *shape)


@exports(LocalResponseNormalization)
def local_response_normalization(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """LRN, which divides α by the width of the window; runtimes know it for images alone."""
    layer, shape = cast("LocalResponseNormalization", planned.layer), planned.output_shape
    width = 2 * (layer.window_width // 2) + 1
    image = x if len(shape) == 3 else w.reshaped(x, shape[0], prod(shape[1:]), 1)
    y = w("LRN", image, size=width, alpha=layer.lrn_alpha * width, beta=layer.lrn_beta, bias=layer.lrn_k)
    return y if len(shape) == 3 else w.reshaped(y, *shape)


@exports(Reduction)
def reduction(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """ReduceSum or ReduceMean of the flattened sample."""
    kind = "ReduceSum" if planned.layer.setting("mode") == "sum" else "ReduceMean"
    return w(kind, w.flat(x), w.ints(1), keepdims=1)


@exports(MultiDimReduction)
def multi_dim_reduction(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """ReduceSum, ReduceProd, ReduceMax or ReduceMin over axes."""
    layer = cast("MultiDimReduction", planned.layer)
    kind = {"sum": "ReduceSum", "product": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}[layer.setting("mode")]
    y = w(kind, x, w.ints(*(axis + 1 for axis in layer.axes)), keepdims=0)
    return y if len(layer.axes) < len(planned.input_shapes[0]) else w.reshaped(y, 1)


@exports(ChannelwiseMean)
def channelwise_mean(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """ReduceMean of each slice of the first dimension."""
    channels, *rest = planned.input_shapes[0]
    return w("ReduceMean", w.reshaped(x, channels, prod(rest)), w.ints(2), keepdims=0)


@exports(Covariance)
def covariance(w: GraphExporter, planned: PlannedLayer, x1: str, x2: str) -> str:
    """Over the entries of the sample."""
    return _covariance(w, planned, x1, x2, cast("Covariance", planned.layer).biased)


@exports(Variance)
def variance(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Over the entries of the sample."""
    return _covariance(w, planned, x, x, cast("Variance", planned.layer).biased)


def _covariance(w: GraphExporter, planned: PlannedLayer, x1: str, x2: str, biased: bool) -> str:
    rows = [w.flat(x1), w.flat(x2)]
    centred = [w("Sub", one, w("ReduceMean", one, w.ints(1), keepdims=1)) for one in rows]
    products = w("ReduceSum", w("Mul", *centred), w.ints(1), keepdims=1)
    return w("Div", products, w.number(prod(planned.input_shapes[0]) - (not biased)))


@exports(BatchwiseReduceSum)
def batchwise_reduce_sum(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """ReduceSum over the samples, for every sample."""
    return w("Expand", w("ReduceSum", x, w.ints(0), keepdims=1), w("Shape", x))


@exports(RowwiseWeightsNorms)
def rowwise_weights_norms(w: GraphExporter, planned: PlannedLayer, weights: str) -> str:
    """ReduceL2 of each row, for every sample."""
    return w.per_sample(w("ReduceL2", weights, w.ints(1), keepdims=0), planned.output_shape)


@exports(WeightsLayer)
def weights_layer(w: GraphExporter, planned: PlannedLayer, weights: str) -> str:
    """The weights, for every sample."""
    return w.per_sample(weights, planned.output_shape)


@exports(Constant)
def constant(w: GraphExporter, planned: PlannedLayer) -> str:
    """One value everywhere."""
    return w.per_sample(w.number(cast("Constant", planned.layer).value), planned.output_shape)


@exports(Bernoulli)
def bernoulli(w: GraphExporter, planned: PlannedLayer) -> str:
    """Zeros, as outside training."""
    return w.per_sample(w.number(0.0), planned.output_shape)


@exports(MiniBatchSize)
def mini_batch_size(w: GraphExporter, planned: PlannedLayer) -> str:
    """The number of samples, for every sample."""
    return w.per_sample(w.numbers(w.samples()), planned.output_shape)


@exports(MiniBatchIndex)
def mini_batch_index(w: GraphExporter, planned: PlannedLayer) -> str:
    """0, 1, 2, ..."""
    zero, one = (w.array(np.array(value, np.int64)) for value in (0, 1))
    places = w("Range", zero, w("Squeeze", w.samples(), w.ints(0)), one)
    return w.reshaped(w("Cast", places, to=onnx.TensorProto.FLOAT), 1)


@exports(CrossEntropy)
def cross_entropy(w: GraphExporter, planned: PlannedLayer, prediction: str, label: str) -> str:
    """−Σ label log(prediction), without the terms whose label is 0."""
    if cast("CrossEntropy", planned.layer).use_labels:
        index = w("Cast", label, to=onnx.TensorProto.INT64)
        terms = w("Log", w("GatherElements", prediction, index, axis=1))
    else:
        counted = w("Not", w("Equal", label, w.number(0)))
        terms = w("Mul", label, w("Log", w("Where", counted, prediction, w.number(1))))
    return w("Neg", w("ReduceSum", w.flat(terms), w.ints(1), keepdims=1))


@exports(MeanSquaredError, MeanAbsoluteError)
def mean_error(w: GraphExporter, planned: PlannedLayer, prediction: str, label: str) -> str:
    """Mean over the sample of (prediction − label)², or of |prediction − label|."""
    apart = w("Sub", prediction, label)
    size = w("Mul", apart, apart) if isinstance(planned.layer, MeanSquaredError) else w("Abs", apart)
    return w("ReduceMean", w.flat(size), w.ints(1), keepdims=1)


@exports(L1Norm)
def l1_norm(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Σ |x|."""
    return w("ReduceL1", w.flat(x), w.ints(1), keepdims=1)


@exports(L2Norm2)
def l2_norm2(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Σ x²."""
    return w("ReduceSumSquare", w.flat(x), w.ints(1), keepdims=1)


@exports(CategoricalAccuracy)
def categorical_accuracy(w: GraphExporter, planned: PlannedLayer, prediction: str, label: str) -> str:
    """1 where the largest entries are at the same place, the first of equal ones, and none is NaN."""
    flat = [w.flat(prediction), w.flat(label)]
    hit = w("Equal", *(w("ArgMax", entries, axis=1, keepdims=1) for entries in flat))
    for entries in flat:
        unknown = w("ReduceSum", w.numbers(w("IsNaN", entries)), w.ints(1), keepdims=1)
        hit = w("And", hit, w("Equal", unknown, w.number(0)))
    return w.numbers(hit)
