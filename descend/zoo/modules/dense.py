"""Fully connected modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph import ChannelwiseFullyConnected, FullyConnected
from descend.zoo.modules.module import Module, activated, fill_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph import Layer, Weights
    from descend.zoo.modules.module import Activation

__all__ = ["ChannelwiseFullyConnectedModule", "FullyConnectedModule"]


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
