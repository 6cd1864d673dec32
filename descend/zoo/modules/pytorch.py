"""torch's matmul, Linear and LayerNorm for tensors of given shapes; functions of layers, as in LBANN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.graph import ChannelwiseFullyConnected, LayerNorm, MatMul, Reshape, Tessellate, Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from descend.graph import Layer, Shape

__all__ = ["PytorchLayerNorm", "PytorchLinear", "PytorchMatmul"]


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
