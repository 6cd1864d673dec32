"""Kinds of the format that have no shape rule yet: they are read, written, and refused by name by the check."""

from __future__ import annotations

from typing import ClassVar

from descend.graph.enums import ConvTensorOpsMode
from descend.graph.kinds.base import Unlowered

__all__ = [
    "GRU",
    "Argmax",
    "Argmin",
    "BatchNormalization",
    "BatchwiseReduceSum",
    "Bernoulli",
    "BilinearResize",
    "CategoricalRandom",
    "ChannelwiseFullyConnected",
    "ChannelwiseMean",
    "ChannelwiseScaleBias",
    "ChannelwiseSoftmax",
    "CompositeImageTransformation",
    "Constant",
    "Covariance",
    "Crop",
    "Cross_Grid_Sum",
    "Cross_Grid_Sum_Slice",
    "Cutout",
    "DFTAbs",
    "Deconvolution",
    "DiscreteRandom",
    "DistEmbedding",
    "Embedding",
    "EntrywiseBatchNormalization",
    "EntrywiseScaleBias",
    "External",
    "Gather",
    "Gaussian",
    "Hadamard",
    "IdentityZero",
    "InTopK",
    "InstanceNorm",
    "L1Norm",
    "L2Norm2",
    "LayerNorm",
    "LocalResponseNormalization",
    "MatMul",
    "MeanAbsoluteError",
    "MiniBatchIndex",
    "MiniBatchSize",
    "MultiDimReduction",
    "OneHot",
    "Reduction",
    "Rotation",
    "RowwiseWeightsNorms",
    "Scatter",
    "SeluDropout",
    "Slice",
    "Sort",
    "StopGradient",
    "TensorPermute",
    "Tessellate",
    "Uniform",
    "UniformHash",
    "Unpooling",
    "Upsample",
    "Variance",
    "WeightedSum",
    "WeightsLayer",
]


class Slice(Unlowered):
    """Cut along axis at n + 1 rising points into n pieces, one a child in the order of the children.

    The pieces need not cover the axis.
    """

    message: ClassVar[str] = "Layer.Slice"
    num_children: ClassVar[int | None] = None

    axis: int = 0
    slice_points: tuple[int, ...] = ()
    get_slice_points_from_reader: str = ""


class Cross_Grid_Sum_Slice(Unlowered):  # noqa: N801  # the format's own spelling
    """Sum over grids of processes, then a slice of it for each."""

    message: ClassVar[str] = "Layer.Cross_Grid_Sum_Slice"
    num_parents: ClassVar[int | None] = None
    num_children: ClassVar[int | None] = None


class Cross_Grid_Sum(Unlowered):  # noqa: N801  # the format's own spelling
    """Sum over grids of processes."""

    message: ClassVar[str] = "Layer.Cross_Grid_Sum"
    num_parents: ClassVar[int | None] = None


class WeightedSum(Unlowered):
    """Sum of the parents, each times its factor."""

    message: ClassVar[str] = "Layer.WeightedSum"
    num_parents: ClassVar[int | None] = None

    scaling_factors: tuple[float, ...] = ()


class Unpooling(Unlowered):
    """Inverse of a max pooling that hint_layer names."""

    message: ClassVar[str] = "Layer.Unpooling"

    num_dims: int = 0


class Hadamard(Unlowered):
    """Entrywise product of all parents."""

    message: ClassVar[str] = "Layer.Hadamard"
    num_parents: ClassVar[int | None] = None


class Constant(Unlowered):
    """A tensor of dimensions num_neurons, all value."""

    message: ClassVar[str] = "Layer.Constant"
    num_parents: ClassVar[int | None] = 0

    value: float = 0.0
    num_neurons: tuple[int, ...] = ()


class Reduction(Unlowered):
    """sum (unless set) or mean of the whole sample."""

    message: ClassVar[str] = "Layer.Reduction"

    mode: str = ""


class Gaussian(Unlowered):
    """Random N(mean, stdev^2); N(0, 1) when both are 0. With training_only the mean outside training."""

    message: ClassVar[str] = "Layer.Gaussian"
    num_parents: ClassVar[int | None] = 0

    mean: float = 0.0
    stdev: float = 0.0
    neuron_dims: tuple[int, ...] = ()
    training_only: bool = False


class Bernoulli(Unlowered):
    """1 with probability prob in training, else 0."""

    message: ClassVar[str] = "Layer.Bernoulli"
    num_parents: ClassVar[int | None] = 0

    prob: float = 0.0
    neuron_dims: tuple[int, ...] = ()


class Uniform(Unlowered):
    """Random in [min, max); [0, 1) when both are 0. With training_only the middle outside training."""

    message: ClassVar[str] = "Layer.Uniform"
    num_parents: ClassVar[int | None] = 0

    min: float = 0.0
    max: float = 0.0
    neuron_dims: tuple[int, ...] = ()
    training_only: bool = False


class Crop(Unlowered):
    """A part of size dims at a place given by the second parent in [0, 1] for each dimension."""

    message: ClassVar[str] = "Layer.Crop"
    num_parents: ClassVar[int | None] = 2

    dims: tuple[int, ...] = ()


class StopGradient(Unlowered):
    """The input; no gradient passes."""

    message: ClassVar[str] = "Layer.StopGradient"


class InTopK(Unlowered):
    """1 at the k largest entries, else 0; the smaller index wins a tie."""

    message: ClassVar[str] = "Layer.InTopK"

    k: int = 0


class Sort(Unlowered):
    """One-dimensional data in rising order, or falling."""

    message: ClassVar[str] = "Layer.Sort"

    descending: bool = False


class WeightsLayer(Unlowered):
    """A weights tensor of dimensions dims, the same for every sample."""

    message: ClassVar[str] = "Layer.WeightsLayer"
    num_parents: ClassVar[int | None] = 0

    dims: tuple[int, ...] = ()


class Tessellate(Unlowered):
    """The input repeated up to dims."""

    message: ClassVar[str] = "Layer.Tessellate"

    dims: tuple[int, ...] = ()


class Scatter(Unlowered):
    """y[index[i]] += x[i]; indices out of range are ignored."""

    message: ClassVar[str] = "Layer.Scatter"
    num_parents: ClassVar[int | None] = 2

    dims: tuple[int, ...] = ()
    axis: int | None = None


class Gather(Unlowered):
    """y[i] = x[index[i]]; 0 for an index out of range."""

    message: ClassVar[str] = "Layer.Gather"
    num_parents: ClassVar[int | None] = 2

    axis: int | None = None


class BatchwiseReduceSum(Unlowered):
    """Sum over the mini-batch, handed to every sample."""

    message: ClassVar[str] = "Layer.BatchwiseReduceSum"


class TensorPermute(Unlowered):
    """The axes in another order."""

    message: ClassVar[str] = "Layer.TensorPermute"

    axes: tuple[int, ...] = ()


class IdentityZero(Unlowered):
    """The input; zeros both ways while the layer is frozen."""

    message: ClassVar[str] = "Layer.IdentityZero"


class MultiDimReduction(Unlowered):
    """sum (unless set), product, max or min over axes, which are dropped."""

    message: ClassVar[str] = "Layer.MultiDimReduction"

    mode: str = ""
    axes: tuple[int, ...] = ()


class Upsample(Unlowered):
    """Each entry repeated by a factor in each dimension (nearest)."""

    message: ClassVar[str] = "Layer.Upsample"

    upsample_mode: str = ""
    num_dims: int = 0
    has_vectors: bool = False
    scale_factors: tuple[int, ...] = ()
    scale_factors_i: int = 0


class CategoricalRandom(Unlowered):
    """Obsolete: read and refused."""

    message: ClassVar[str] = "Layer.CategoricalRandom"


class DiscreteRandom(Unlowered):
    """Obsolete: read and refused."""

    message: ClassVar[str] = "Layer.DiscreteRandom"

    values: tuple[float, ...] = ()
    dims: tuple[int, ...] = ()


class Deconvolution(Unlowered):
    """Transposed convolution: output (in - 1) stride + kernel - 2 padding + output_padding."""

    message: ClassVar[str] = "Layer.Deconvolution"

    num_dims: int = 0
    out_channels: int = 0
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int | None = None
    has_bias: bool | None = None
    dilation: tuple[int, ...] = ()
    conv_tensor_op_mode: ConvTensorOpsMode = ConvTensorOpsMode.DEFAULT_TENSOR_OPS


class Embedding(Unlowered):
    """Row floor(x) of a table for each entry; zeros for an index out of range."""

    message: ClassVar[str] = "Layer.Embedding"

    num_embeddings: int = 0
    embedding_dim: int = 0
    padding_idx: int | None = None


class ChannelwiseScaleBias(Unlowered):
    """a x + b with one pair for each channel."""

    message: ClassVar[str] = "Layer.ChannelwiseScaleBias"


class EntrywiseScaleBias(Unlowered):
    """a x + b with one pair for each entry."""

    message: ClassVar[str] = "Layer.EntrywiseScaleBias"


class ChannelwiseFullyConnected(Unlowered):
    """One affine map for every slice of the first dimension."""

    message: ClassVar[str] = "Layer.ChannelwiseFullyConnected"

    output_channel_dims: tuple[int, ...] = ()
    bias: bool | None = None
    transpose: bool | None = None


class GRU(Unlowered):
    """Stacked gated recurrent units over a sequence (parents.

    Sequence, first hidden state); gives the top layer at every step.
    """

    message: ClassVar[str] = "Layer.GRU"
    num_parents: ClassVar[int | None] = 2

    hidden_size: int = 0
    num_layers: int | None = None


class MeanAbsoluteError(Unlowered):
    """Mean over the sample of |prediction - label|."""

    message: ClassVar[str] = "Layer.MeanAbsoluteError"
    num_parents: ClassVar[int | None] = 2


class L2Norm2(Unlowered):
    """Sum of x^2."""

    message: ClassVar[str] = "Layer.L2Norm2"


class L1Norm(Unlowered):
    """Sum of |x|."""

    message: ClassVar[str] = "Layer.L1Norm"


class MatMul(Unlowered):
    """Matrix product of two parents; with three dimensions one product for each entry of the first."""

    message: ClassVar[str] = "Layer.MatMul"
    num_parents: ClassVar[int | None] = 2

    transpose_a: bool = False
    transpose_b: bool = False


class DFTAbs(Unlowered):
    """Magnitude of the discrete Fourier transform, each channel by itself."""

    message: ClassVar[str] = "Layer.DFTAbs"


class BatchNormalization(Unlowered):
    """Per channel over mini-batch and space.

    (x - mean) / sqrt(variance + epsilon) scale + bias. The variance is the unbiased one.
    """

    message: ClassVar[str] = "Layer.BatchNormalization"

    decay: float = 0.0
    epsilon: float = 0.0
    statistics_group_size: int = 0
    no_bessel_correction: bool = False
    scale_init: float = 0.0
    bias_init: float = 0.0
    stats_aggregation: str = ""


class LocalResponseNormalization(Unlowered):
    """x / (lrn_k + lrn_alpha sum of x^2)^lrn_beta over window_width channels.

    Nothing is filled in; alpha is not divided by the width.
    """

    message: ClassVar[str] = "Layer.LocalResponseNormalization"

    window_width: int = 0
    lrn_alpha: float = 0.0
    lrn_beta: float = 0.0
    lrn_k: float = 0.0


class SeluDropout(Unlowered):
    """Dropout that keeps mean and variance behind a Selu. alpha and scale are Selu's unless both are set."""

    message: ClassVar[str] = "Layer.SeluDropout"

    keep_prob: float = 0.0
    alpha: float = 0.0
    scale: float = 0.0


class EntrywiseBatchNormalization(Unlowered):
    """The same for each entry over the mini-batch, without scale and bias.

    Decay and epsilon are taken as they stand.
    """

    message: ClassVar[str] = "Layer.EntrywiseBatchNormalization"

    decay: float = 0.0
    epsilon: float = 0.0


class LayerNorm(Unlowered):
    """Per sample over the dimensions from start_dim on.

    (x - mean) / sqrt(variance + epsilon), then scale and bias if asked for.
    """

    message: ClassVar[str] = "Layer.LayerNorm"

    epsilon: float | None = None
    scale: bool = False
    bias: bool = False
    start_dim: int = 0


class InstanceNorm(Unlowered):
    """Per sample and channel: (x - mean) / sqrt(variance + epsilon)."""

    message: ClassVar[str] = "Layer.InstanceNorm"

    epsilon: float | None = None


class BilinearResize(Unlowered):
    """Images to height x width, bilinear, pixel centres at one half."""

    message: ClassVar[str] = "Layer.BilinearResize"

    height: int = 0
    width: int = 0


class Rotation(Unlowered):
    """Images turned by an angle in degrees (second parent)."""

    message: ClassVar[str] = "Layer.Rotation"
    num_parents: ClassVar[int | None] = 2


class CompositeImageTransformation(Unlowered):
    """Images turned, sheared and moved; parents are image, angle, shear, translation."""

    message: ClassVar[str] = "Layer.CompositeImageTransformation"
    num_parents: ClassVar[int | None] = 4


class Cutout(Unlowered):
    """Blanks a square of the image; its side is the second parent."""

    message: ClassVar[str] = "Layer.Cutout"
    num_parents: ClassVar[int | None] = 2


class Covariance(Unlowered):
    """Over the entries of two parents, divided by n - 1, or by n with biased."""

    message: ClassVar[str] = "Layer.Covariance"
    num_parents: ClassVar[int | None] = 2

    biased: bool = False


class Variance(Unlowered):
    """Over the entries, divided by n - 1, or by n with biased."""

    message: ClassVar[str] = "Layer.Variance"

    biased: bool = False


class ChannelwiseMean(Unlowered):
    """Mean of each slice of the first dimension."""

    message: ClassVar[str] = "Layer.ChannelwiseMean"


class MiniBatchIndex(Unlowered):
    """The position of the sample in the mini-batch."""

    message: ClassVar[str] = "Layer.MiniBatchIndex"
    num_parents: ClassVar[int | None] = 0


class MiniBatchSize(Unlowered):
    """The size of the mini-batch."""

    message: ClassVar[str] = "Layer.MiniBatchSize"
    num_parents: ClassVar[int | None] = 0


class Argmax(Unlowered):
    """Index of the first largest entry."""

    message: ClassVar[str] = "Layer.Argmax"


class Argmin(Unlowered):
    """Index of the first smallest entry."""

    message: ClassVar[str] = "Layer.Argmin"


class OneHot(Unlowered):
    """An index as a vector of length size; zeros when out of range."""

    message: ClassVar[str] = "Layer.OneHot"

    size: int = 0


class ChannelwiseSoftmax(Unlowered):
    """Softmax over each slice along dim, or along dim alone with single_dim_mode."""

    message: ClassVar[str] = "Layer.ChannelwiseSoftmax"

    dim: int = 0
    single_dim_mode: bool = False


class DistEmbedding(Unlowered):
    """Embedding with its table spread over processes; the arithmetic is Embedding's."""

    message: ClassVar[str] = "Layer.DistEmbedding"

    num_embeddings: int = 0
    embedding_dim: int = 0
    sparse_sgd: bool = False
    learning_rate: float = 0.0
    barrier_in_forward_prop: bool = False


class UniformHash(Unlowered):
    """A number in [0, 1) from the bytes of each entry (MD5)."""

    message: ClassVar[str] = "Layer.UniformHash"


class RowwiseWeightsNorms(Unlowered):
    """Euclidean norm of each row of a matrix that another layer owns."""

    message: ClassVar[str] = "Layer.RowwiseWeightsNorms"
    num_parents: ClassVar[int | None] = 0


class External(Unlowered):
    """A layer from a shared library. Read and refused: loading a file never runs code."""

    message: ClassVar[str] = "Layer.External"
    num_parents: ClassVar[int | None] = None

    filename: str = ""
    layer_name: str = ""
