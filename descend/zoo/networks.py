"""LeNet, AlexNet and a multilayer perceptron, as modules whose outputs are logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph import Dropout, LocalResponseNormalization, Pooling, Relu
from descend.zoo.modules import ConvolutionModule, FullyConnectedModule, Module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from descend.graph import Layer

__all__ = ["MLP", "AlexNet", "LeNet"]


class LeNet(Module):
    """LeNet for images of about 28 x 28, with ReLU and max pooling as LBANN has it.

    Args:
        output_size: Number of classes.
        name: `lenet<N>` without one.

    Source: LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition.
    """

    prefix: ClassVar[str] = "lenet"

    def __init__(self, output_size: int, name: str | None = None) -> None:
        super().__init__(name)
        self.convolutions = [
            ConvolutionModule(2, channels, 5, activation=Relu, name=f"{self.name}_conv{i}")
            for i, channels in enumerate((6, 16), 1)
        ]
        self.dense = [
            FullyConnectedModule(size, activation=Relu if i < 3 else None, name=f"{self.name}_fc{i}")
            for i, size in enumerate((120, 84, output_size), 1)
        ]

    def forward(self, x: Layer) -> Layer:
        """Shapes: images (channels, height, width); result (output_size,) logits."""
        for i, convolution in enumerate(self.convolutions, 1):
            x = _max_pool(convolution(x), 2, 2, self.label(f"pool{i}"))
        for dense in self.dense:
            x = dense(x)
        return x


class AlexNet(Module):
    """AlexNet for images of 3 x 224 x 224 or 227 x 227, in one part.

    Args:
        output_size: Number of classes.
        name: `alexnet<N>` without one.

    Source: Krizhevsky, Sutskever and Hinton 2012, ImageNet Classification with Deep Convolutional Neural Networks; the
    widths are those of that paper's two parts together, and no convolution has groups.
    """

    prefix: ClassVar[str] = "alexnet"

    def __init__(self, output_size: int, name: str | None = None) -> None:
        super().__init__(name)
        # channels, kernel, stride, padding
        sizes = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1))
        self.convolutions = [
            ConvolutionModule(2, *numbers, activation=Relu, name=f"{self.name}_conv{i}")
            for i, numbers in enumerate(sizes, 1)
        ]
        self.dense = [
            FullyConnectedModule(size, activation=Relu if i < 8 else None, name=f"{self.name}_fc{i}")
            for i, size in enumerate((4096, 4096, output_size), 6)
        ]

    def forward(self, x: Layer) -> Layer:
        """Shapes: images (3, height, width); result (output_size,) logits."""
        norm: dict[str, Any] = {"window_width": 5, "lrn_alpha": 1e-4, "lrn_beta": 0.75, "lrn_k": 2}
        for i, convolution in enumerate(self.convolutions, 1):
            x = convolution(x)
            if i in (1, 2):
                x = LocalResponseNormalization(x, name=self.label(f"norm{i}"), **norm)
            if i in (1, 2, 5):
                x = _max_pool(x, 3, 2, self.label(f"pool{i}"))
        *hidden, last = self.dense
        for i, dense in enumerate(hidden, 6):
            x = Dropout(dense(x), keep_prob=0.5, name=self.label(f"drop{i}"))
        return last(x)


class MLP(Module):
    """Fully connected layers with an activation between them.

    Args:
        sizes: Outputs of each layer; the last gives the result, without an activation.
        activation: Kind of the layers between.
        dropout: Probability that an entry between two layers is dropped in training.
        name: `mlp<N>` without one.
    """

    prefix: ClassVar[str] = "mlp"

    def __init__(
        self, sizes: Iterable[int], activation: type[Layer] = Relu, dropout: float = 0.0, name: str | None = None
    ) -> None:
        super().__init__(name)
        *hidden, last = sizes
        self.hidden = [
            FullyConnectedModule(size, activation=activation, name=f"{self.name}_fc{i}")
            for i, size in enumerate(hidden, 1)
        ]
        self.last = FullyConnectedModule(last, name=f"{self.name}_fc{len(hidden) + 1}")
        self.dropout = dropout

    def forward(self, x: Layer) -> Layer:
        """Shapes: x any; result (last size,)."""
        for i, dense in enumerate(self.hidden, 1):
            x = dense(x)
            if self.dropout:
                x = Dropout(x, keep_prob=1 - self.dropout, name=self.label(f"drop{i}"))
        return self.last(x)


def _max_pool(x: Layer, size: int, stride: int, name: str) -> Layer:
    return Pooling(x, name=name, num_dims=2, pool_mode="max", pool_dims_i=size, pool_strides_i=stride)
