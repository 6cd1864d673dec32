"""Fully connected modules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments.strict_keywords import also_takes
from descend.errors import ConfigurationError
from descend.graph import (
    ChannelwiseFullyConnected,
    Convolution,
    Deconvolution,
    FullyConnected,
    LayerNorm,
    MatMul,
    Multiply,
    OperatorLayer,
    Reshape,
    Sigmoid,
    Tessellate,
    Weights,
    ops,
)
from descend.zoo.modules.module import Module, activated, fill_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from descend.graph import Layer, Shape, Weights
    from descend.zoo.modules.module import Activation

__all__ = [
    "ChannelwiseFullyConnectedModule",
    "Convolution2dModule",
    "Convolution3dModule",
    "ConvolutionModule",
    "FullyConnectedModule",
    "Gelu",
    "Gelu_approx",
    "PytorchLayerNorm",
    "PytorchLinear",
    "PytorchMatmul",
    "Silu",
]


class FullyConnectedModule(Module):
    """FullyConnected, by default with a bias, followed by an activation.

    Args:
        size: Number of outputs.
        bias: Whether a bias is added.
        transpose: Whether the matrix is transposed.
        weights: Matrix and bias; those that are missing are made as `<name>_matrix` and `<name>_bias`.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `fc<N>` without one.
        data_layout: As in a layer.
        parallel_strategy: As in a layer.
    """

    prefix: ClassVar[str] = "fc"

    def __init__(
        self,
        size: int,
        bias: bool = True,
        transpose: bool = False,
        weights: Weights | Iterable[Weights] = (),
        activation: Activation | Layer | None = None,
        name: str | None = None,
        data_layout: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        self.size, self.bias, self.transpose, self.activation = size, bias, transpose, activation
        self.data_layout, self.parallel_strategy = data_layout, parallel_strategy
        self.weights = fill_weights(self, weights, ["matrix", "bias"] if bias else ["matrix"])

    def forward(self, x: Layer) -> Layer:
        """Shapes: x any; result (size,)."""
        y = FullyConnected(
            x,
            weights=self.weights,
            name=self.label(),
            data_layout=self.data_layout,
            parallel_strategy=self.parallel_strategy,
            num_neurons=self.size,
            has_bias=self.bias,
            transpose=self.transpose,
        )
        return activated(self, y, self.activation)


class ChannelwiseFullyConnectedModule(Module):
    """ChannelwiseFullyConnected, by default without a bias, followed by an activation.

    Args:
        size: Outputs of each channel: a number or several dimensions.
        bias: Whether a bias is added.
        transpose: Whether the matrix is transposed.
        weights: Matrix and bias; those that are missing are made as `<name>_matrix` and `<name>_bias`.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `channelwisefc<N>` without one.
        parallel_strategy: As in a layer.
    """

    prefix: ClassVar[str] = "channelwisefc"

    def __init__(
        self,
        size: int | Iterable[int],
        bias: bool = False,
        transpose: bool = False,
        weights: Weights | Iterable[Weights] = (),
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        self.size, self.bias, self.transpose, self.activation = size, bias, transpose, activation
        self.parallel_strategy = parallel_strategy
        self.weights = fill_weights(self, weights, ["matrix", "bias"] if bias else ["matrix"])

    def forward(self, x: Layer) -> Layer:
        """Shapes: x (C, ...); result (C, *size)."""
        y = ChannelwiseFullyConnected(
            x,
            weights=self.weights,
            name=self.label(),
            parallel_strategy=self.parallel_strategy,
            output_channel_dims=self.size,
            bias=self.bias,
            transpose=self.transpose,
        )
        return activated(self, y, self.activation)


# ---- activations composed of operators, one layer each; they are functions, as in LBANN


def _named(name: str | None, part: str) -> str | None:
    return f"{name}_{part}" if name else None


def Gelu(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x Φ(x) = x (1 + erf(x / √2)) / 2, exactly; the layer `descend.Gelu` is the approximation by tanh.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    chain = [ops.Scale(constant=math.sqrt(0.5)), ops.Erf(), ops.AddConstant(constant=1.0), ops.Scale(constant=0.5)]
    return Multiply(x, OperatorLayer(x, ops=chain, name=_named(name, "share")), name=name)


def Gelu_approx(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, which is the operator Gelu."""
    return OperatorLayer(x, ops=[ops.Gelu()], name=name)


def Silu(x: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """x σ(x). Source: Elfwing, Uchibe and Doya 2017, https://arxiv.org/abs/1702.03118"""
    return Multiply(x, Sigmoid(x, name=_named(name, "share")), name=name)


# ---- convolution modules


class ConvolutionModule(Module):
    """Convolution, or with `transpose` Deconvolution, and an activation behind it.

    Args:
        num_dims: Spatial dimensions.
        out_channels: Channels of the output.
        kernel_size: A number, or one for each dimension; so are stride, padding and dilation.
        stride: Steps of the window.
        padding: Zeros around the input.
        dilation: Distance between entries of the window.
        groups: Groups of channels that do not mix.
        bias: Whether a bias is added.
        weights: Kernel and bias; those that are missing are made as `<name>_kernel` and `<name>_bias`.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `conv<N>` without one.
        transpose: Whether it is a transposed convolution.
        parallel_strategy: As in a layer.
    """

    prefix: ClassVar[str] = "conv"

    def __init__(
        self,
        num_dims: int,
        out_channels: int,
        kernel_size: int | Iterable[int],
        stride: int | Iterable[int] = 1,
        padding: int | Iterable[int] = 0,
        dilation: int | Iterable[int] = 1,
        groups: int = 1,
        bias: bool = True,
        weights: Weights | Iterable[Weights] = (),
        activation: Activation | Layer | None = None,
        name: str | None = None,
        transpose: bool = False,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        self.kind = Deconvolution if transpose else Convolution
        self.activation = activation
        self.parallel_strategy = parallel_strategy
        self.weights = fill_weights(self, weights, ["kernel", "bias"] if bias else ["kernel"])
        self.fields: dict[str, Any] = {
            "num_dims": num_dims,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "has_bias": bias,
        }

    def forward(self, x: Layer) -> Layer:
        """Shapes: x (C, *space); result (out_channels, *places)."""
        y = self.kind(
            x, weights=self.weights, name=self.label(), parallel_strategy=self.parallel_strategy, **self.fields
        )
        return activated(self, y, self.activation)


class Convolution2dModule(ConvolutionModule):
    """ConvolutionModule for images."""

    @also_takes(ConvolutionModule.__init__, "num_dims")
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(2, *args, **options)


class Convolution3dModule(ConvolutionModule):
    """ConvolutionModule for volumes."""

    @also_takes(ConvolutionModule.__init__, "num_dims")
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(3, *args, **options)


# ---- torch's matmul, Linear and LayerNorm for tensors of given shapes; functions of layers, as in LBANN


def PytorchMatmul(  # noqa: N802  # LBANN's name
    x: Layer,
    x_shape: Sequence[int],
    y: Layer,
    y_shape: Sequence[int],
    return_dims: bool = False,
    name: str | None = None,
) -> Layer | tuple[Layer, Shape]:
    """torch.matmul(x, y): lines count as one row or column, and all dimensions but the last two are broadcast.

    Args:
        x: A layer of shape x_shape, of one dimension or more.
        x_shape: Its shape.
        y: A layer of shape y_shape, of one dimension or more.
        y_shape: Its shape.
        return_dims: Whether the shape of the result is given beside the layer.
        name: Of the last layer.

    Raises:
        ConfigurationError: the shapes do not fit.
    """
    part = name or f"{x.name}_{y.name}_matmul"
    a = (1, *x_shape) if len(x_shape) == 1 else tuple(x_shape)
    b = (*y_shape, 1) if len(y_shape) == 1 else tuple(y_shape)
    stack = _broadcast(a[:-2], b[:-2])
    if stack is None or a[-1] != b[-2]:
        raise ConfigurationError(f"PytorchMatmul of shapes {tuple(x_shape)} and {tuple(y_shape)}: they do not fit")
    left, right = (
        Reshape(_copied(one, shape, stack, f"{part}_{side}"), dims=[-1, *shape[-2:]], name=f"{part}_{side}_stack")
        for one, shape, side in ((x, a, "left"), (y, b, "right"))
    )
    rows = a[-2:-1] if len(x_shape) > 1 else ()
    columns = b[-1:] if len(y_shape) > 1 else ()
    dims = (*stack, *rows, *columns) or (1,)
    product = MatMul(left, right, name=f"{part}_products")
    result = Reshape(product, dims=dims, name=part)
    return (result, dims) if return_dims else result


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Shape | None:
    """The shape that both have after copying, or None."""
    rank = max(len(a), len(b))
    long_a, long_b = ((1,) * (rank - len(one)) + tuple(one) for one in (a, b))
    if any(m != n and 1 not in (m, n) for m, n in zip(long_a, long_b, strict=True)):
        return None
    return tuple(max(m, n) for m, n in zip(long_a, long_b, strict=True))


def _copied(x: Layer, shape: Shape, stack: Shape, name: str) -> Layer:
    """x of (..., rows, columns) as (*stack, rows, columns)."""
    if shape[:-2] == stack:
        return x
    long = (1,) * (len(stack) + 2 - len(shape)) + shape
    return Tessellate(Reshape(x, dims=long, name=f"{name}_long"), dims=[*stack, *shape[-2:]], name=f"{name}_copies")


def PytorchLinear(  # noqa: N802  # LBANN's name
    x: Layer,
    input_shape: Sequence[int],
    hidden_size: int,
    weights: Weights | Iterable[Weights] = (),
    name: str | None = None,
    return_dims: bool = False,
    bias: bool = True,
) -> Layer | tuple[Layer, Shape]:
    """torch.nn.Linear: W x + b of each line along the last dimension.

    Args:
        x: A layer of shape input_shape.
        input_shape: Its shape.
        hidden_size: Size of the last dimension of the result.
        weights: Matrix (hidden_size, input_shape[-1]) and bias; made where they are missing.
        name: Of the last layer.
        return_dims: Whether the shape of the result is given beside the layer.
        bias: Whether there is b.
    """
    part = name or f"{x.name}_linear"
    dims = (*input_shape[:-1], hidden_size)
    lines = Reshape(x, dims=[-1, input_shape[-1]], name=f"{part}_lines")
    mapped = ChannelwiseFullyConnected(
        lines, output_channel_dims=hidden_size, bias=bias, weights=weights, name=f"{part}_map"
    )
    y = Reshape(mapped, dims=dims, name=part)
    return (y, dims) if return_dims else y


def PytorchLayerNorm(  # noqa: N802  # LBANN's name
    x: Layer,
    epsilon: float,
    input_shape: Sequence[int],
    weights: Weights | Iterable[Weights] = (),
    name: str | None = None,
) -> Layer:
    """torch.nn.LayerNorm over the last dimension, with scale and bias.

    Args:
        x: A layer of shape input_shape.
        epsilon: Added to the variance.
        input_shape: Its shape.
        weights: Scale and bias, input_shape[-1] each; made where they are missing.
        name: Of the layer.
    """
    return LayerNorm(
        x, start_dim=len(input_shape) - 1, epsilon=epsilon, scale=True, bias=True, weights=weights, name=name
    )
