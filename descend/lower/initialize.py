"""First values of weights, by LBANN's initializers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.errors import GraphError
from descend.graph import (
    ConstantInitializer,
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    LeCunNormalInitializer,
    NormalInitializer,
    NumpyInitializer,
    UniformInitializer,
    ValueInitializer,
)
from descend.graph.weights import ArrayInitializer, ColumnsInitializer
from descend.lower.formats import torch_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from descend.graph import PlannedWeights

__all__ = ["initial_values"]

_NORMAL = (GlorotNormalInitializer, HeNormalInitializer, LeCunNormalInitializer)


def initial_values(weights: PlannedWeights, draw: torch.Generator, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The initial values of one parameter.

    Args:
        weights: Its shape, initializer and fans.
        draw: A generator that belongs to these weights alone, so that no other weights change what is drawn.
        dtype: Format of the result, in which random numbers are drawn; without it what the weights ask for, or float32.

    Returns:
        A tensor of the weights' shape.

    Raises:
        GraphError: listed values or a file do not match the shape.
    """
    values = _values(weights, draw, dtype or torch_format(weights.datatype))
    if weights.zero_columns:
        values[:, list(weights.zero_columns)] = 0.0
    return values


def _values(weights: PlannedWeights, draw: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    shape, start = weights.shape, weights.initializer
    if isinstance(start, ConstantInitializer):
        return torch.full(shape, start.value, dtype=dtype)
    if isinstance(start, ColumnsInitializer):
        return torch.tensor(start.values, dtype=dtype).repeat(*shape[:-1], 1)
    if isinstance(start, ArrayInitializer):
        return torch.tensor(start.array, dtype=dtype)
    if isinstance(start, ValueInitializer):
        return _listed(weights, start).to(dtype)
    if isinstance(start, NumpyInitializer):
        return _from_file(weights, start).to(dtype)
    if isinstance(start, UniformInitializer):
        low, high = start.bounds
        return torch.empty(shape, dtype=dtype).uniform_(low, high, generator=draw)
    if isinstance(start, NormalInitializer):
        mean, deviation = start.moments
        return torch.empty(shape, dtype=dtype).normal_(mean, deviation, generator=draw)
    deviation = math.sqrt(_variance(weights))
    if isinstance(start, _NORMAL):
        return torch.empty(shape, dtype=dtype).normal_(0.0, deviation, generator=draw)
    bound = math.sqrt(3.0) * deviation
    return torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=draw)


def _variance(weights: PlannedWeights) -> float:
    """Glorot 2 / (in + out), He 2 / in, LeCun 1 / in; the fan rules of LBANN."""
    start = weights.initializer
    if isinstance(start, (GlorotNormalInitializer, GlorotUniformInitializer)):
        return 2.0 / (weights.fan_in + weights.fan_out)
    return (2.0 if isinstance(start, (HeNormalInitializer, HeUniformInitializer)) else 1.0) / weights.fan_in


def _listed(weights: PlannedWeights, start: ValueInitializer) -> torch.Tensor:
    values = torch.tensor(start.listed, dtype=torch.float64)
    count = math.prod(weights.shape)
    if len(values) != count:
        raise GraphError(
            f"weights '{weights.name}' of shape {weights.shape} need {count:,} values; "
            f"the initializer lists {len(values):,}"
        )
    if weights.column_major:
        return values.reshape(weights.shape[::-1]).permute(*range(len(weights.shape) - 1, -1, -1)).contiguous()
    return values.reshape(weights.shape)


def _from_file(weights: PlannedWeights, start: NumpyInitializer) -> torch.Tensor:
    path = Path(start.file)
    try:  # mapped, so that a header that claims more than the file has takes no memory
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # of a damaged header numpy raises the tokenizer's errors too
        raise GraphError(f"weights '{weights.name}': {path} cannot be read as a .npy file: {error}") from error
    if array.shape != weights.shape or array.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise GraphError(
            f"weights '{weights.name}': {path} holds {array.dtype} of shape {array.shape}; "
            f"float32 or float64 of shape {weights.shape} is needed"
        )
    return torch.from_numpy(np.array(array))
