"""Operations that torch's own CPU kernels take long for in stacks, as others that give the same numbers up to rounding.

`FASTER` is a decomposition table for `make_fx`: a function there stands for an operation of a trace, or says
`NotImplemented` where the operation is better left as it is. All of them are such that TorchScript can run the trace.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from descend.torch_private import private_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["FASTER"]

_aten = torch.ops.aten
_NARROW = 16  # columns of a product below which MKL takes half the time for its transpose
_MOST_UNFOLDED = 2**24  # elements of windows in memory for the gradient of a convolution's weights


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:  # signature of the operation
    if half_to_float:
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _log_softmax_backward(g: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return g - y.exp() * g.sum(dim, keepdim=True) if input_dtype == g.dtype else NotImplemented


def _bmm(x: Tensor, y: Tensor) -> Tensor:
    if x.device.type == "cpu" and y.shape[2] < _NARROW <= x.shape[1]:
        return torch.bmm(y.mT, x.mT).mT
    return NotImplemented


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return NotImplemented if dim is None or x.is_contiguous() else x.contiguous().argmax(dim, keepdim)


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
    """Of those gradients alone that are asked for: TorchScript has no operation some of whose results are missing."""
    if all(mask) or transposed or not mask[1]:
        return NotImplemented
    if not mask[0] and x.device.type == "cpu" and _elements_of_windows(g, weight, groups) <= _MOST_UNFOLDED:
        found = _weight_gradient(g, x, weight, stride, padding, dilation, groups)
        return None, found, g.sum([0, *range(2, g.ndim)]) if mask[2] else None
    sizes, rest = [weight.shape[0]], (stride, padding, dilation, transposed, output_padding, groups, [True] * 3)
    every = _aten.convolution_backward(g, x, weight, sizes, *rest)
    return every[0] if mask[0] else None, every[1], every[2] if mask[2] else None


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
    kernel, size = weight.shape[2:], g.shape[2:]
    dims = len(kernel)
    spread = [list(one) * dims if len(one) == 1 else list(one) for one in (stride, padding, dilation)]
    padded = torch.nn.functional.pad(x, [width for one in reversed(spread[1]) for width in (one, one)])
    grouped = padded.unflatten(1, (groups, -1)).transpose(0, 1).transpose(1, 2)  # (groups, channels, samples, ...)
    windows: list[Tensor] = []
    for offset in itertools.product(*map(range, kernel)):
        part = grouped
        for dim, place in enumerate(offset):
            step, first = spread[0][dim], place * spread[2][dim]
            taken = slice(first, first + (size[dim] - 1) * step + 1, step)
            part = part[(..., taken, *[slice(None)] * (dims - 1 - dim))]
        windows.append(part)
    columns = torch.stack(windows, 2).flatten(3).flatten(1, 2)
    rows = g.unflatten(1, (groups, -1)).transpose(0, 1).transpose(1, 2).flatten(2)
    return torch.bmm(rows, columns.mT).reshape(weight.shape)


FASTER: dict[Any, Callable[..., Any]] = {
    _aten.argmax.default: _argmax,
    _aten.bmm.default: _bmm,
    _aten.convolution_backward.default: _convolution_backward,
    private_operator("_log_softmax").default: _log_softmax,
    private_operator("_log_softmax_backward_data").default: _log_softmax_backward,
}
