"""LeNet: two convolutions with pooling, then three fully connected layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.graph import Convolution, FullyConnected, Pooling, Relu, Softmax

if TYPE_CHECKING:
    from descend.graph import Layer

__all__ = ["lenet", "small_lenet"]


def lenet(images: Layer, num_labels: int = 10) -> Layer:
    """Class probabilities of images, for images of about 28 x 28.

    Shapes: images (channels, height, width); result (num_labels,).
    Source: LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition, in LBANN's form: convolutions of
        6 and 16
    channels with 5 x 5 kernels, max pooling, fully connected layers of 120, 84 and num_labels, and ReLU between them.
    """
    x = _stage(images, "1", channels=6, kernel_size=5)
    x = _stage(x, "2", channels=16, kernel_size=5)
    for name, neurons in (("fc1", 120), ("fc2", 84)):
        x = Relu(FullyConnected(x, name=name, num_neurons=neurons, has_bias=True), name=f"relu_{name}")
    return Softmax(FullyConnected(x, name="fc3", num_neurons=num_labels, has_bias=True), name="probabilities")


def small_lenet(images: Layer, num_labels: int = 10) -> Layer:
    """A network of LeNet's form for images of about 8 x 8: 3 x 3 kernels with padding, and two fully connected layers.

    Shapes: images (channels, height, width); result (num_labels,).
    """
    x = _stage(images, "1", channels=16, kernel_size=3, padding=1)
    x = _stage(x, "2", channels=32, kernel_size=3, padding=1)
    x = Relu(FullyConnected(x, name="fc1", num_neurons=64, has_bias=True), name="relu_fc1")
    return Softmax(FullyConnected(x, name="fc2", num_neurons=num_labels, has_bias=True), name="probabilities")


def _stage(x: Layer, number: str, channels: int, kernel_size: int, padding: int = 0) -> Layer:
    """Convolution, ReLU and a max pooling that halves height and width."""
    x = Convolution(
        x,
        name=f"conv{number}",
        num_dims=2,
        out_channels=channels,
        kernel_size=kernel_size,
        stride=1,
        padding=padding,
        has_bias=True,
    )
    x = Relu(x, name=f"relu{number}")
    return Pooling(x, name=f"pool{number}", num_dims=2, pool_mode="max", pool_dims_i=2, pool_strides_i=2)
