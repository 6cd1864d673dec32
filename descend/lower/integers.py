"""Layers that compute in a format of numbers: integers, and fractions that are rounded to a narrower format."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from descend.errors import DataError
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, ToFormat
from descend.lower.gradients import with_gradient
from descend.lower.registry import lowers
from descend.lower.tracing import in_transform

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


def _rounded(narrow: torch.dtype) -> Forward:
    """x rounded to a narrower format and back; the gradient passes as it is, and is not rounded itself."""
    return with_gradient(lambda x: x.to(narrow).to(x.dtype), lambda dy, y, x: dy)


@lowers(ToFormat, with_pass=True)
def to_format(planned: PlannedLayer) -> Forward:
    """A conversion."""
    name = cast("ToFormat", planned.layer).format
    if name in ("float", "float16", "bfloat16"):
        rounded = None if name == "float" else _rounded(getattr(torch, name))

        def fractions(at: ForwardContext, x: Tensor) -> Tensor:
            y = x if name == "float" and x.is_floating_point() else x.to(at.dtype)
            return y if rounded is None else rounded(y)

        return fractions
    wanted: torch.dtype = getattr(torch, name)
    return lambda at, x: x.detach().to(wanted)


@lowers(IntegerConstant, with_pass=True)
def integer_constant(planned: PlannedLayer) -> Forward:
    """The integers, for every sample."""
    layer = cast("IntegerConstant", planned.layer)
    values = torch.tensor(layer.values, dtype=getattr(torch, layer.format))
    values = values.expand(layer.dims) if len(values) == 1 else values.reshape(layer.dims)
    return lambda at: values.to(at.device).expand(at.samples, *layer.dims)


@lowers(IntegerOperator)
def integer_operator(planned: PlannedLayer) -> Forward:
    """The operation; a divisor of 0, and an exponent below 0, have no result among the integers."""
    operation = cast("IntegerOperator", planned.layer).operation

    def forward(a: Tensor, b: Tensor) -> Tensor:
        wrong = b < 0 if operation == "power" else b == 0
        if not in_transform(b) and bool(wrong.any()):
            what = "has an exponent below 0" if operation == "power" else "divides by 0"
            raise DataError(f"layer '{planned.name}' ({operation}) {what}, which has no result among the integers")
        return _integers(operation, a, b)

    return forward


def _integers(operation: str, a: Tensor, b: Tensor) -> Tensor:
    if operation == "power":
        return torch.pow(a, b)
    # The smallest integer over -1 has no quotient and is an exception of the processor; its negative wraps around.
    of_one = b == -1
    safe = b.where(~of_one, 1)
    if operation == "divide":
        return torch.div(a, safe, rounding_mode="trunc").where(~of_one, -a)
    return (torch.fmod if operation == "remainder" else torch.remainder)(a, safe)


@lowers(CheckedIndex)
def checked_index(planned: PlannedLayer) -> Forward:
    """Indices from 0 on."""
    layer = cast("CheckedIndex", planned.layer)
    size, reader = layer.size, layer.reader or f"layer '{planned.name}'"

    def forward(x: Tensor) -> Tensor:
        index = x.detach()
        index = index.floor() if index.is_floating_point() else index.long()
        good = (index >= -size) & (index < size)
        if not in_transform(x) and not bool(good.all()):
            raise DataError(f"{reader}: an index must be from {-size} to {size - 1}, got {index[~good][0].item():g}")
        return torch.where(index < 0, index + size, index)

    return forward
