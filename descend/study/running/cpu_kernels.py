"""Operations that torch's CPU kernels take long for in stacks, as others that give the same numbers up to rounding."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from descend.torch_private import private_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from torch import Tensor

__all__ = ["decompositions"]

_aten = torch.ops.aten
# Columns of a product below which MKL takes half the time for its transpose. From there on it wants the longer side as
# rows: samples times the transpose of a layer's weights take up to twice as long as the weights times samples.
_NARROW = 16
_MOST_UNFOLDED = 2**24  # elements of windows in memory for a convolution
_ENOUGH_CHANNELS = 4  # of a group's input, for which oneDNN takes no longer than products with windows do
_VECTOR = 16  # images whose maxima are taken at a time, a cache line of float32


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:  # signature of the operation
    if half_to_float:
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _log_softmax_backward(g: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return g - y.exp() * g.sum(dim, keepdim=True) if input_dtype == g.dtype else NotImplemented


def _bmm(x: Tensor, y: Tensor, inputs: Container[int] = ()) -> Tensor:
    """The transpose of the transposes' product where MKL is faster with it."""
    rows, columns = x.shape[1], y.shape[2]
    if x.device.type != "cpu":
        return NotImplemented
    # Samples times weights: what lies between layers is then kept transposed, and gradients of weights are not.
    wide = _NARROW <= rows < columns and y.untyped_storage().data_ptr() in inputs
    return torch.bmm(y.mT, x.mT).mT if wide or columns < _NARROW <= rows else NotImplemented


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return NotImplemented if dim is None or x.is_contiguous() else x.contiguous().argmax(dim, keepdim)


def _max_pool2d_with_indices(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """Of several images at a time as channels of one that come last: that kernel of torch takes vectors."""
    at_once = math.gcd(math.prod(x.shape[:-2]), _VECTOR)
    if x.device.type != "cpu" or x.ndim != 4 or not x.is_contiguous() or at_once < _VECTOR // 2:
        return NotImplemented
    last = x.view(-1, at_once, *x.shape[2:]).contiguous(memory_format=torch.channels_last)
    if last.is_contiguous():  # an image of one element
        return NotImplemented
    found = _aten.max_pool2d_with_indices(last, *settings)
    values, indices = (part.contiguous().view(*x.shape[:2], *part.shape[2:]) for part in found)
    return values, indices


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Groups of few channels as products of weights and windows, which the gradient of the weights needs, too."""
    depthwise = len(weight) == groups  # for which oneDNN has a kernel
    few = groups > 1 and weight.shape[1] < _ENOUGH_CHANNELS and not depthwise
    if x.device.type != "cpu" or transposed or bias is not None or not few:
        return NotImplemented
    size = [
        (length + 2 * margin - gap * (kernel - 1) - 1) // step + 1
        for length, kernel, margin, gap, step in zip(
            x.shape[2:],
            weight.shape[2:],
            *(_of_each(one, x.ndim - 2) for one in (padding, dilation, stride)),
            strict=True,
        )
    ]
    if groups * math.prod(weight.shape[1:]) * len(x) * math.prod(size) > _MOST_UNFOLDED:
        return NotImplemented
    columns = _columns(x, weight.shape[2:], size, stride, padding, dilation, groups)
    products = torch.bmm(weight.reshape(groups, -1, columns.shape[1]), columns)
    return products.unflatten(2, (len(x), *size)).permute(2, 0, 1, *range(3, x.ndim + 1)).flatten(1, 2)


def _convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a first convolution, whose input needs none: that of the weights as a product with windows."""
    if mask[0] or transposed or not mask[1] or x.device.type != "cpu":
        return NotImplemented
    if _elements_of_windows(g, weight, groups) > _MOST_UNFOLDED:
        return NotImplemented
    found = _weight_gradient(g, x, weight, stride, padding, dilation, groups)
    return None, found, g.sum([0, *range(2, g.ndim)]) if mask[2] else None


def _elements_of_windows(g: Tensor, weight: Tensor, groups: int) -> int:
    return groups * math.prod(weight.shape[1:]) * g.shape[0] * math.prod(g.shape[2:])


def _weight_gradient(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Windows of the input as the columns of a matrix for each group, times the gradient of the output."""
    columns = _columns(x, weight.shape[2:], g.shape[2:], stride, padding, dilation, groups)
    rows = g.unflatten(1, (groups, -1)).transpose(0, 1).transpose(1, 2).flatten(2)
    return torch.bmm(rows, columns.mT).reshape(weight.shape)


def _columns(
    x: Tensor,
    kernel: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The elements of windows, (groups, channels of a group times elements of the kernel, samples times windows).

    Args:
        x: Input, (samples, channels, ...).
        kernel: Elements of a window in each dimension.
        size: Windows in each dimension.
        stride: From one window to the next.
        padding: Zeros around the input.
        dilation: From one element of a window to the next.
        groups: Of channels.
    """
    steps, margins, gaps = (_of_each(one, len(kernel)) for one in (stride, padding, dilation))
    padded = torch.nn.functional.pad(x, [width for one in reversed(margins) for width in (one, one)])
    grouped = padded.unflatten(1, (groups, -1)).transpose(0, 1).transpose(1, 2)  # (groups, channels, samples, ...)
    windows: list[Tensor] = []
    for offset in itertools.product(*map(range, kernel)):
        part = grouped
        for dim, place in enumerate(offset):
            step, first = steps[dim], place * gaps[dim]
            taken = slice(first, first + (size[dim] - 1) * step + 1, step)
            part = part[(..., taken, *[slice(None)] * (len(kernel) - 1 - dim))]
        windows.append(part)
    return torch.stack(windows, 2).flatten(3).flatten(1, 2)


def _of_each(setting: Sequence[int], dims: int) -> list[int]:
    """A setting of a convolution for each dimension."""
    return list(setting) * dims if len(setting) == 1 else list(setting)


_FASTER: dict[Any, Callable[..., Any]] = {
    _aten.argmax.default: _argmax,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.max_pool2d_with_indices.default: _max_pool2d_with_indices,
    private_operator("_log_softmax").default: _log_softmax,
    private_operator("_log_softmax_backward_data").default: _log_softmax_backward,
}


def decompositions(inputs: Sequence[Tensor]) -> dict[Any, Callable[..., Any]]:
    """A table for `recorded`: other forms of operations in a function of these inputs, weights among them.

    A function there stands for an operation, or says `NotImplemented` where the operation is better left as it is.
    """
    storages = {x.untyped_storage().data_ptr() for x in inputs}
    return {**_FASTER, _aten.bmm.default: functools.partial(_bmm, inputs=storages)}
