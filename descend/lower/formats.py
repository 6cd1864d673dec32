"""Formats of numbers that layers and weights ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from descend.graph import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.lower.registry import Forward

__all__ = ["in_format", "torch_format"]

_FORMATS: Mapping[DataType, torch.dtype] = {
    DataType.FLOAT: torch.float32,
    DataType.DOUBLE: torch.float64,
    DataType.FP16: torch.float16,
}


def torch_format(datatype: DataType | None) -> torch.dtype:
    """torch's format; float32 where none is asked for."""
    return torch.float32 if datatype is None else _FORMATS[datatype]


def in_format(forward: Forward, with_pass: bool, datatype: DataType) -> Forward:
    """A forward pass whose inputs, weights and outputs are brought to a format."""
    dtype = _FORMATS[datatype]

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    def formatted(*given: Any) -> Any:
        tensors = map(cast, given[1:] if with_pass else given)
        result = forward(replace(given[0], dtype=dtype), *tensors) if with_pass else forward(*tensors)
        return tuple(map(cast, result)) if isinstance(result, tuple) else cast(result)

    return formatted
