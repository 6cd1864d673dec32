"""Layers that compute in a format of numbers: integers, and fractions that are rounded to a narrower format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch

from descend.errors import DataError
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, IntegerReduction, ToFormat
from descend.lower.formats import in_transform, with_gradient
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


def _rounded(narrow: torch.dtype) -> Forward:
    """x rounded to a narrower format and back; the gradient passes as it is, and is not rounded itself."""
    return with_gradient(lambda x: x.to(narrow).to(x.dtype, copy=True), lambda dy, y, x: dy)


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
    """The operation; a divisor of 0, and 0 to an exponent below 0, have no result among the integers."""
    operation = cast("IntegerOperator", planned.layer).operation

    def forward(a: Tensor, b: Tensor) -> Tensor:
        wrong = (a == 0) & (b < 0) if operation == "power" else b == 0
        if not in_transform(b) and bool(wrong.any()):
            what = "raises 0 to an exponent below 0" if operation == "power" else "divides by 0"
            raise DataError(f"layer '{planned.name}' ({operation}) {what}, which has no result among the integers")
        return _integers(operation, a, b)

    return forward


def _integers(operation: str, a: Tensor, b: Tensor) -> Tensor:
    if operation == "power":
        fraction = torch.where(a.abs() == 1, torch.where(b % 2 == 0, 1, a), 0)  # of an exponent below 0
        bounds = torch.iinfo(a.dtype)
        inside = a.double().pow(b.double()).abs() <= float(bounds.max)
        return torch.pow(a, b.clamp_min(0)).where(inside, bounds.min).where(b >= 0, fraction)
    # The smallest integer over -1 has no quotient and is an exception of the processor; its negative wraps around.
    of_one = b == -1
    safe = b.where(~of_one, 1)
    if operation == "divide":
        return torch.div(a, safe, rounding_mode="trunc").where(~of_one, -a)
    return (torch.fmod if operation == "remainder" else torch.remainder)(a, safe)


@lowers(IntegerReduction)
def integer_reduction(planned: PlannedLayer) -> Forward:
    """In float64, which holds all sums of 32 bits; of 64 bits exactly, where the result is one of them."""
    layer = cast("IntegerReduction", planned.layer)
    operation, dims = layer.operation, [axis + 1 for axis in layer.axes]
    count = math.prod(planned.input_shapes[0][axis] for axis in layer.axes)

    def forward(x: Tensor) -> Tensor:
        wide = _reduced(operation, x.double(), dims, count)
        y = _saturated(wide, x.dtype)
        if x.dtype == torch.int64 and operation not in ("product", "norm"):
            exact = _reduced(operation, x, dims, count)
            y = exact.where(wide.abs() < 2.0**62, y)
        return y.view(len(x), *planned.output_shape)

    return forward


def _reduced(operation: str, x: Tensor, dims: list[int], count: int) -> Tensor:
    if operation == "product":
        for dim in sorted(dims, reverse=True):
            x = x.prod(dim)
        return x
    x = x.abs() if operation == "magnitudes" else x * x if operation in ("squares", "norm") else x
    total = x.sum(dims)
    if operation == "norm":
        return total.sqrt()
    return torch.div(total, count, rounding_mode="trunc") if operation == "mean" else total


def _saturated(x: Tensor, wanted: torch.dtype) -> Tensor:
    """Fractions without what is behind the point, kept within a format of integers."""
    bounds = torch.iinfo(wanted)
    inside = x.clamp(float(bounds.min), float(bounds.max))
    # The largest integer of 64 bits is rounded up to a float64, which is beyond them.
    return torch.where(inside >= float(bounds.max), bounds.max, inside.to(wanted)).to(wanted)


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
            raise DataError(f"{reader}: an index must be from {-size} to {size - 1}, got {index[~good][0].item():.0f}")
        return torch.where(index < 0, index + size, index)

    return forward
