"""Formats of numbers that layers and weights ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.graph import (
    BatchNormalization,
    BatchwiseReduceSum,
    ChannelwiseMean,
    ChannelwiseSoftmax,
    Covariance,
    CrossEntropy,
    DataType,
    EntrywiseBatchNormalization,
    InstanceNorm,
    L1Norm,
    L2Norm2,
    LayerNorm,
    LocalResponseNormalization,
    LogSoftmax,
    MeanAbsoluteError,
    MeanSquaredError,
    MultiDimReduction,
    OperatorLayer,
    Reduction,
    Softmax,
    Variance,
)
from descend.torch_private import is_functorch_wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from descend.lower.registry import Forward

__all__ = [
    "WIDE",
    "WIDE_INSIDE",
    "by_channel",
    "in_formats",
    "in_transform",
    "may_branch",
    "torch_format",
    "widened",
    "with_gradient",
]


# Squares and sums over many entries, whose parts leave half precision where the result need not.
WIDE_INSIDE = (
    ChannelwiseMean,
    ChannelwiseSoftmax,
    Covariance,
    CrossEntropy,
    InstanceNorm,
    L1Norm,
    L2Norm2,
    LayerNorm,
    LocalResponseNormalization,
    LogSoftmax,
    MeanAbsoluteError,
    MeanSquaredError,
    MultiDimReduction,
    Reduction,
    Variance,
)
# What else loses too much there; on a CPU autocast itself leaves them in half precision. In a format of their own
# running values stay in it, a Softmax is at least the root of its smallest number, and operators say what they take.
WIDE = (*WIDE_INSIDE, BatchNormalization, BatchwiseReduceSum, EntrywiseBatchNormalization, OperatorLayer, Softmax)

_FORMATS: Mapping[DataType, torch.dtype] = {
    DataType.FLOAT: torch.float32,
    DataType.DOUBLE: torch.float64,
    DataType.FP16: torch.float16,
}


def torch_format(datatype: DataType | None) -> torch.dtype:
    """torch's format; float32 where none is asked for."""
    return torch.float32 if datatype is None else _FORMATS[datatype]


def _cast(x: Any, dtype: torch.dtype | None) -> Any:
    return x.to(dtype) if dtype is not None and isinstance(x, torch.Tensor) and x.is_floating_point() else x


def in_formats(
    forward: Forward, with_pass: bool, inputs: DataType | None, outputs: DataType | None, kept: tuple[int, ...] = ()
) -> Forward:
    """A forward pass whose inputs and weights, and whose outputs, are brought to a format each; None leaves them.

    The inputs at the places `kept` stay as they are.
    """
    taken, given = (None if one is None else _FORMATS[one] for one in (inputs, outputs))

    def formatted(*xs: Any) -> Any:
        own = xs[1:] if with_pass else xs
        tensors = (x if i in kept else _cast(x, taken) for i, x in enumerate(own))
        result = forward(replace(xs[0], dtype=taken or xs[0].dtype), *tensors) if with_pass else forward(*tensors)
        return tuple(_cast(y, given) for y in result) if isinstance(result, tuple) else _cast(result, given)

    return formatted


def widened(forward: Forward, *, back: bool = False) -> Forward:
    """A forward pass that computes in float32 what comes in half precision; with `back` its result is half again."""
    narrow = (torch.float16, torch.bfloat16)

    def wide(*given: Any) -> Any:
        like = next((x.dtype for x in given if isinstance(x, torch.Tensor) and x.dtype in narrow), None)
        if like is None:
            return forward(*given)
        result = forward(*(x.float() if isinstance(x, torch.Tensor) and x.dtype in narrow else x for x in given))
        return result.to(like) if back else result

    return wide


# ---- samples seen channel by channel


def by_channel(x: Tensor) -> Tensor:
    """(samples, C, entries) from (samples, C, ...); also of no samples, where reshape cannot infer a size."""
    return x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)


# ---- whether a forward pass may look at values: not while it is traced or exported


def in_transform(x: Tensor) -> bool:
    """Whether x is inside torch.func, whose tensors answer no questions of layout or value."""
    return is_functorch_wrapped(x)


def may_branch(x: Tensor) -> bool:
    """Whether asking for a value is cheap and allowed: not on a GPU, while compiling, inside torch.func, or of none."""
    return x.device.type == "cpu" and x.numel() > 0 and not torch.compiler.is_compiling() and not in_transform(x)


# ---- functions whose gradient is not what calculus, or torch, says


def with_gradient(
    value: Callable[..., Tensor], gradient: Callable[..., Tensor | tuple[Tensor | None, ...]]
) -> Callable[..., Tensor]:
    """A function of tensors with a gradient rule of its own.

    Args:
        value: The function.
        gradient: Takes the gradient of the output, the output, and the inputs; returns the gradient of each input.
    """

    class Ruled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Tensor:
            return value(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(output, *inputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradient(gradients[0], *ctx.saved_tensors)

    return cast("Callable[..., Tensor]", Ruled.apply)
