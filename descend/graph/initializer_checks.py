"""Whether weights can start as their initializer says."""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING, Any

from descend.graph.layer import shown
from descend.graph.weights import (
    ArrayInitializer,
    ConstantInitializer,
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
    NormalInitializer,
    NumpyInitializer,
    UniformInitializer,
    ValueInitializer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.graph.plan import PlannedWeights

__all__ = ["initializer_problems"]

_BY_FANS = (
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
)


def initializer_problems(weights: PlannedWeights) -> Iterator[str]:
    """What is wrong with the initializer for this shape; each text completes "weights 'w' ..."."""
    start = weights.initializer
    if isinstance(start, ConstantInitializer) and not math.isfinite(start.value):
        yield f"start at {start.value!r}; expected a finite number"
    elif isinstance(start, ArrayInitializer):
        yield from _array_problems(start, weights)
    elif isinstance(start, ValueInitializer):
        yield from _value_problems(start, weights)
    elif isinstance(start, NumpyInitializer):
        yield from _file_problems(start, weights)
    elif isinstance(start, UniformInitializer) and not (
        start.min <= start.max and math.isfinite(start.max - start.min)
    ):
        yield f"start between {start.min!r} and {start.max!r}; expected finite numbers, the smaller first"
    elif isinstance(start, NormalInitializer) and not (
        math.isfinite(start.mean) and 0 <= start.standard_deviation < math.inf
    ):
        yield f"start as N({start.mean!r}, {start.standard_deviation!r}²); expected finite numbers, the second >= 0"
    elif isinstance(start, _BY_FANS) and not weights.fan_in:
        kind = type(start).__name__
        yield f"start as {kind}, which counts inputs, and layer '{weights.layer}' counts none for them: use another one"


def _value_problems(start: ValueInitializer, weights: PlannedWeights) -> Iterator[str]:
    if start.values and start.values_d:
        yield "have both values and values_d; expected one of them"
    elif len(start.listed) != prod(weights.shape):
        size = prod(weights.shape)
        yield f"have {size} entries ({shown(weights.shape)}) in layer '{weights.layer}', and {len(start.listed)} values"
    elif not all(map(math.isfinite, start.listed)):
        yield "have a listed value that is not finite"


def _array_problems(start: ArrayInitializer, weights: PlannedWeights) -> Iterator[str]:
    import numpy as np

    array = start.array
    if array.shape != weights.shape:
        yield f"are {shown(weights.shape)} for layer '{weights.layer}', and their array is {shown(array.shape)}"
    elif array.dtype.kind != "f" or not np.isfinite(array).all():
        yield f"start from an array of {array.dtype}; expected finite numbers of float32 or float64"


def _file_problems(start: NumpyInitializer, weights: PlannedWeights) -> Iterator[str]:
    import numpy as np

    try:  # not np.load, which opens archives too
        found: NDArray[Any] = np.lib.format.open_memmap(start.file, mode="r")
    except Exception as error:  # of a damaged header numpy raises the tokenizer's errors too
        yield f"start from '{start.file}', which cannot be read as .npy: {error}"
        return
    if found.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        yield f"start from '{start.file}', which holds {found.dtype}; expected float32 or float64"
    if found.shape != weights.shape:
        yield f"are {shown(weights.shape)} for layer '{weights.layer}', and '{start.file}' holds {shown(found.shape)}"
