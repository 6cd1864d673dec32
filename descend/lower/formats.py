"""Formats of numbers that layers and weights ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.lower.registry import Forward

__all__ = ["WIDE", "WIDE_INSIDE", "in_formats", "torch_format", "widened"]

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
