"""Layers with weights that map features to features.

Weights that are not given start as He's normal distribution (variance 2 / fan-in), biases at zero.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from descend.errors import GraphError
from descend.graph.enums import ConvTensorOpsMode
from descend.graph.kinds.base import per_dimension, window_shape
from descend.graph.layer import Incoming, Layer, Shape, WeightSlot
from descend.graph.weights import ConstantInitializer, HeNormalInitializer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Convolution", "FullyConnected", "Window"]


class FullyConnected(Layer):
    """y = W x (+ b) of the flattened input.

    Shapes: x of n entries in any shape; y (num_neurons,); W (num_neurons, n), or with `transpose` (n, num_neurons)
    and y = Wᵀ x (+ b); b (num_neurons,). **There is no bias unless has_bias is set.** Listed values fill W column by
    column.
    """

    message: ClassVar[str] = "Layer.FullyConnected"

    num_neurons: int = 0
    has_bias: bool = False
    transpose: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(num_neurons,)."""
        if self.num_neurons < 1:
            raise GraphError(f"has num_neurons {self.num_neurons}; it must be at least 1")
        return (self.num_neurons,)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The matrix, then the bias if there is one."""
        size, neurons = inputs[0].size, self.num_neurons
        shape = (size, neurons) if self.transpose else (neurons, size)
        matrix = WeightSlot("linearity_weights", shape, HeNormalInitializer(), size, neurons, column_major=True)
        bias = WeightSlot("bias_weights", (neurons,), ConstantInitializer())
        return (matrix, bias) if self.has_bias else (matrix,)


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
        dims = self.num_dims
        if dims < 1:
            raise GraphError(f"has num_dims {dims}; it must be at least 1 (2 for images)")
        return Window(
            per_dimension("kernel_size", self.kernel_size, dims, None, 1),
            per_dimension("stride", self.stride, dims, 1, 1),
            per_dimension("padding", self.padding, dims, 0, 0),
            per_dimension("dilation", self.dilation, dims, 1, 1),
        )

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(out_channels, *places)."""
        (incoming,) = inputs
        window = self.window()
        check_channels_first(incoming, self.num_dims)
        channels, groups = incoming.shape[0], self.setting("groups")
        if self.out_channels < 1:
            raise GraphError(f"has out_channels {self.out_channels}; it must be at least 1")
        if groups < 1 or channels % groups or self.out_channels % groups:
            raise GraphError(
                f"has {groups} groups, which must divide its {channels} input and {self.out_channels} output channels"
            )
        return (self.out_channels, *window_shape(incoming, window.size, window.stride, window.padding, window.dilation))

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The kernel, then the bias if there is one."""
        channels = inputs[0].shape[0]
        shape = (self.out_channels, channels // self.setting("groups"), *self.window().size)
        entries = prod(shape)
        kernel = WeightSlot("kernel", shape, HeNormalInitializer(), entries // self.out_channels, entries // channels)
        bias = WeightSlot("bias", (self.out_channels,), ConstantInitializer())
        return (kernel, bias) if self.setting("has_bias") else (kernel,)


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
