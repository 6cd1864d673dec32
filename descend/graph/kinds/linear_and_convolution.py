"""Layers with weights that map features to features.

Weights that are not given start as He's normal distribution (variance 2 / fan-in), biases at zero.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from descend.errors import GraphError
from descend.graph.enums import ConvTensorOpsMode
from descend.graph.kinds.base import per_dimension, window_shape
from descend.graph.layer import Incoming, Layer, Shape, WeightSlot, shown
from descend.graph.weights import ColumnsInitializer, ConstantInitializer, HeNormalInitializer, UniformInitializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = [
    "GRU",
    "ChannelwiseFullyConnected",
    "ChannelwiseScaleBias",
    "Convolution",
    "Deconvolution",
    "EntrywiseScaleBias",
    "FullyConnected",
    "Window",
]


class FullyConnected(Layer):
    """y = W x (+ b) of the flattened input.

    Shapes: x of n entries in any shape; y (num_neurons,), or where that is not set of the shape of the hint_layer;
    W (num_neurons, n), or with `transpose` (n, num_neurons) and y = Wᵀ x (+ b); b (num_neurons,). **There is no bias
    unless has_bias is set.** Listed values fill W column by column.
    """

    message: ClassVar[str] = "Layer.FullyConnected"
    sized_by: ClassVar[str] = "num_neurons"

    num_neurons: int = 0
    has_bias: bool = False
    transpose: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(num_neurons,), or the shape of the hint_layer."""
        if self.num_neurons < 1:
            raise GraphError(f"has num_neurons {self.num_neurons}; it must be at least 1")
        return self.hinted or (self.num_neurons,)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The matrix, then the bias if there is one."""
        size, neurons = inputs[0].size, self.num_neurons
        shape = (size, neurons) if self.transpose else (neurons, size)
        matrix = WeightSlot("linearity_weights", shape, HeNormalInitializer(), size, neurons, column_major=True)
        bias = WeightSlot("bias_weights", (neurons,), ConstantInitializer())
        return (matrix, bias) if self.has_bias else (matrix,)

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """One for each entry of the matrix."""
        return prod(inputs[0]) * prod(output)


class ChannelwiseFullyConnected(Layer):
    """y[c] = W x[c] (+ b) for every slice c of the first dimension, flattened; one W for all of them.

    Shapes: x (C, *rest) with n entries in a slice; y (C, *output_channel_dims) with m; W (m, n), or with `transpose`
    (n, m) and y = Wᵀ x; b (m,). There is a bias unless `bias` is set to false. Listed values fill W column by column.
    """

    message: ClassVar[str] = "Layer.ChannelwiseFullyConnected"
    defaults: ClassVar[Mapping[str, Any]] = {"bias": True, "transpose": False}

    output_channel_dims: tuple[int, ...] = ()
    bias: bool | None = None
    transpose: bool | None = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C, *output_channel_dims)."""
        if not self.output_channel_dims or min(self.output_channel_dims) < 1:
            raise GraphError(
                f"has output_channel_dims {shown(self.output_channel_dims)}; expected one or more sizes of at least 1"
            )
        return (inputs[0].shape[0], *self.output_channel_dims)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The matrix, then the bias if there is one."""
        size, neurons = prod(inputs[0].shape[1:]), prod(self.output_channel_dims)
        shape = (size, neurons) if self.setting("transpose") else (neurons, size)
        matrix = WeightSlot("linearity_weights", shape, HeNormalInitializer(), size, neurons, column_major=True)
        bias = WeightSlot("bias_weights", (neurons,), ConstantInitializer())
        return (matrix, bias) if self.setting("bias") else (matrix,)

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """One for each entry of the matrix and each channel."""
        return prod(inputs[0][1:]) * prod(output)


class _ScaleBias(Layer):
    """One tensor of two columns: what an entry is multiplied by, and what is added."""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        return inputs[0].shape

    def count(self, incoming: Incoming) -> int:
        """How many pairs there are."""
        return incoming.size

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Scales in the first column, biases in the second."""
        shape = (self.count(inputs[0]), 2)
        return (WeightSlot("weights", shape, ColumnsInitializer((1.0, 0.0)), column_major=True),)


class ChannelwiseScaleBias(_ScaleBias):
    """y = a_c x + b_c, one pair for each channel c.

    Shapes: x (C, ...); one weights tensor (C, 2), its first column a (1 at the start), its second b (0). Listed values
    fill it column by column.
    """

    message: ClassVar[str] = "Layer.ChannelwiseScaleBias"

    def count(self, incoming: Incoming) -> int:
        """Number of channels."""
        return incoming.shape[0]


class EntrywiseScaleBias(_ScaleBias):
    """y = a ∘ x + b, one pair for each entry of the sample.

    Shapes: x any, n entries; one weights tensor (n, 2), its first column a (1 at the start), its second b (0). Listed
    values fill it column by column.
    """

    message: ClassVar[str] = "Layer.EntrywiseScaleBias"


class Window(NamedTuple):
    """The numbers of a window, one for each spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class Convolution(Layer):
    """Cross-correlation over `num_dims` spatial dimensions: y[k] = Σ_c w[k, c] ⋆ x[c] (+ b[k]), in each group.

    Shapes: x (C, *space); y (out_channels, *places), places floor((in + 2 padding − dilation (kernel − 1) − 1) /
    stride) + 1; kernel (out_channels, C / groups, *kernel_size); bias (out_channels,). Unset: stride 1, padding 0,
    dilation 1, groups 1, and a bias. A list of one number holds for every dimension. LBANN's own CPU code refuses
    groups and dilation; here they work.
    """

    message: ClassVar[str] = "Layer.Convolution"
    defaults: ClassVar[Mapping[str, Any]] = {"groups": 1, "has_bias": True}

    num_dims: int = 0
    out_channels: int = 0
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    groups: int | None = None
    has_bias: bool | None = None
    dilation: tuple[int, ...] = ()
    conv_tensor_op_mode: ConvTensorOpsMode = ConvTensorOpsMode.DEFAULT_TENSOR_OPS

    def window(self) -> Window:
        """Kernel size, stride, padding and dilation with every default filled in.

        Raises:
            GraphError: one of them has the wrong length or a number out of range.
        """
        return conv_window(self)

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(out_channels, *places)."""
        (incoming,) = inputs
        window = self.window()
        check_channels(self, incoming)
        return (self.out_channels, *window_shape(incoming, window.size, window.stride, window.padding, window.dilation))

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The kernel, then the bias if there is one."""
        channels = inputs[0].shape[0]
        shape = (self.out_channels, channels // self.setting("groups"), *self.window().size)
        return kernel_slots(shape, self.out_channels, channels, self.setting("has_bias"))

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """For each entry of the output one for each entry of a filter."""
        return prod(output) * inputs[0][0] // self.setting("groups") * prod(self.window().size)


class Deconvolution(Layer):
    """Transposed convolution over `num_dims` spatial dimensions: the map that is a convolution's gradient.

    Shapes: x (C, *space); y (out_channels, *places), places (in − 1) stride + dilation (kernel − 1) + 1 − 2 padding +
    output_padding; kernel (C, out_channels / groups, *kernel_size); bias (out_channels,). Unset: stride 1, padding 0,
    output_padding 0, dilation 1, groups 1, and a bias. A list of one number holds for every dimension.
    """

    message: ClassVar[str] = "Layer.Deconvolution"
    defaults: ClassVar[Mapping[str, Any]] = {"groups": 1, "has_bias": True}

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

    def window(self) -> Window:
        """Kernel size, stride, padding and dilation with every default filled in.

        Raises:
            GraphError: one of them has the wrong length or a number out of range.
        """
        return conv_window(self)

    def extra(self) -> tuple[int, ...]:
        """output_padding for each dimension, which is below the stride or the dilation.

        Raises:
            GraphError: it is not, or has the wrong length.
        """
        window = self.window()
        extra = per_dimension("output_padding", self.output_padding, self.num_dims, 0, 0)
        if any(e >= max(s, d) for e, s, d in zip(extra, window.stride, window.dilation, strict=True)):
            raise GraphError(
                f"has output_padding {shown(extra)}, which must be below the stride {shown(window.stride)} or the "
                f"dilation {shown(window.dilation)}"
            )
        return extra

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(out_channels, *places)."""
        (incoming,) = inputs
        window = self.window()
        check_channels(self, incoming)
        numbers = zip(incoming.shape[1:], *window, self.extra(), strict=True)
        places = tuple((size - 1) * s + d * (k - 1) + 1 - 2 * p + e for size, k, s, p, d, e in numbers)
        if min(places) < 1:
            raise GraphError(
                f"has padding {shown(window.padding)} and {incoming}: nothing is left; make padding smaller"
            )
        return (self.out_channels, *places)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The kernel, then the bias if there is one."""
        channels = inputs[0].shape[0]
        shape = (channels, self.out_channels // self.setting("groups"), *self.window().size)
        return kernel_slots(shape, self.out_channels, channels, self.setting("has_bias"))

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """For each entry of the input one for each entry that it spreads to."""
        return prod(inputs[0]) * output[0] // self.setting("groups") * prod(self.window().size)


def conv_window(layer: Convolution | Deconvolution) -> Window:
    """The window of a convolution with every default filled in."""
    dims = layer.num_dims
    if not 1 <= dims <= 3:
        raise GraphError(f"has num_dims {dims}; it must be 1 to 3 (2 for images)")
    return Window(
        per_dimension("kernel_size", layer.kernel_size, dims, None, 1),
        per_dimension("stride", layer.stride, dims, 1, 1),
        per_dimension("padding", layer.padding, dims, 0, 0),
        per_dimension("dilation", layer.dilation, dims, 1, 1),
    )


def check_channels(layer: Convolution | Deconvolution, incoming: Incoming) -> None:
    """Refuse channels that are none, or that groups do not divide.

    Raises:
        GraphError: of that kind.
    """
    check_channels_first(incoming, layer.num_dims)
    channels, groups = incoming.shape[0], layer.setting("groups")
    if layer.out_channels < 1:
        raise GraphError(f"has out_channels {layer.out_channels}; it must be at least 1")
    if groups < 1 or channels % groups or layer.out_channels % groups:
        raise GraphError(
            f"has {groups} groups, which must divide its {channels} input and {layer.out_channels} output channels"
        )


def kernel_slots(shape: Shape, out_channels: int, in_channels: int, has_bias: bool) -> tuple[WeightSlot, ...]:
    """The kernel, then the bias if there is one."""
    entries = prod(shape)
    kernel = WeightSlot("kernel", shape, HeNormalInitializer(), entries // out_channels, entries // in_channels)
    bias = WeightSlot("bias", (out_channels,), ConstantInitializer())
    return (kernel, bias) if has_bias else (kernel,)


def check_channels_first(incoming: Incoming, num_dims: int) -> None:
    """Refuse an input that does not have one dimension of channels and then `num_dims` of space.

    Raises:
        GraphError: it has more or fewer.
    """
    if len(incoming.shape) != num_dims + 1:
        raise GraphError(
            f"works on channels and {num_dims} spatial dimensions, and {incoming}: "
            f"put a Reshape to {num_dims + 1} dimensions between them, or set num_dims"
        )


# ---- layers that walk along a sequence


class GRU(Layer):
    """Gated recurrent units in `num_layers` layers (1 unless set), each working on what the one below gives.

        r = σ(W_r x + b_r + U_r h + c_r)        z = σ(W_z x + b_z + U_z h + c_z)
        n = tanh(W_n x + b_n + r ∘ (U_n h + c_n))        h ← (1 − z) ∘ n + z ∘ h

    Shapes: parents are the sequence (length, input size) and the first hidden states (num_layers, hidden_size); y
    (length, hidden_size), the top layer at every step. Four weights a layer l, from U(±1/√hidden_size), each with its
    rows in the order r, z, n: ih_matrix_l (3 hidden, input) is W, hh_matrix_l (3 hidden, hidden) is U, ih_bias_l is b
    and hh_bias_l is c, both (3 hidden,). Listed values fill the matrices column by column.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078, with the reset gate behind the product, as PyTorch has it.
    """

    message: ClassVar[str] = "Layer.GRU"
    defaults: ClassVar[Mapping[str, Any]] = {"num_layers": 1}
    num_parents: ClassVar[int | None] = 2

    hidden_size: int = 0
    num_layers: int | None = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(length, hidden_size)."""
        sequence, hidden = inputs
        layers: int = self.setting("num_layers")
        if self.hidden_size < 1 or layers < 1:
            raise GraphError(f"has hidden_size {self.hidden_size} and num_layers {layers}; both must be at least 1")
        if len(sequence.shape) != 2:
            raise GraphError(f"needs a sequence (length, input size), and {sequence}")
        if hidden.shape not in ((layers, self.hidden_size), (self.hidden_size,) if layers == 1 else ()):
            raise GraphError(f"needs first hidden states of {shown((layers, self.hidden_size))}, and {hidden}")
        return (sequence.shape[0], self.hidden_size)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Two matrices and two biases a layer, from the lowest layer up."""
        h = self.hidden_size
        start = UniformInitializer(-(h**-0.5), h**-0.5)
        slots: list[WeightSlot] = []
        for layer in range(self.setting("num_layers")):
            size = h if layer else inputs[0].shape[1]
            slots += [
                WeightSlot(f"ih_matrix_l{layer}", (3 * h, size), start, size, 3 * h, column_major=True),
                WeightSlot(f"hh_matrix_l{layer}", (3 * h, h), start, h, 3 * h, column_major=True),
                WeightSlot(f"ih_bias_l{layer}", (3 * h,), start),
                WeightSlot(f"hh_bias_l{layer}", (3 * h,), start),
            ]
        return tuple(slots)

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """For each step one for each entry of the matrices."""
        length, size = inputs[0]
        above = (self.setting("num_layers") - 1) * 2 * self.hidden_size
        return length * 3 * self.hidden_size * (size + self.hidden_size + above)
