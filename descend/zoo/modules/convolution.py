"""Convolution modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments.strict_keywords import also_takes
from descend.graph import Convolution, Deconvolution
from descend.zoo.modules.module import Module, activated, fill_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph import Layer, Weights
    from descend.zoo.modules.module import Activation

__all__ = ["Convolution2dModule", "Convolution3dModule", "ConvolutionModule"]


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
