"""Estimates from a description whether a model fits into the memory of this machine."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.graph import DataType
from descend.graph.layer import shown
from descend.machine import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.graph import Plan, PlannedLayer, PlannedWeights

__all__ = ["beyond_memory", "machine_bytes"]

_NUMBER_BYTES = {DataType.FP16: 2, DataType.FLOAT: 4, DataType.DOUBLE: 8}
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def beyond_memory(plan: Plan, trains: bool, memory_bytes: int) -> list[str]:
    """A warning about a model that needs more than this memory and may still fit on a larger device; empty if none.

    Args:
        plan: The checked graph.
        trains: Whether weights get gradients.
        memory_bytes: Memory of this machine.

    Raises:
        ConfigurationError: the weights alone are larger; every process initializes them in its main memory.
    """
    weights = sum(map(_weights_bytes, plan.weights.values()))
    gradients = sum(_weights_bytes(one) for one in plan.weights.values() if one.trainable) if trains else 0
    layer = max(plan.layers, key=_sample_bytes, default=None)
    output = _sample_bytes(layer) if layer else 0
    if weights > memory_bytes:
        largest = max(plan.weights.values(), key=_weights_bytes)
        owner = next((one.layer for one in plan.layers if one.name == largest.layer), None)
        where = f"{owner.where}: " if owner and owner.where else ""
        raise ConfigurationError(
            f"{where}the weights alone are {_gigabytes(weights)} and this machine has {_gigabytes(memory_bytes)} of "
            f"memory; the largest are '{largest.name}' of layer '{largest.layer}' with {shown(largest.shape)} numbers, "
            f"{_gigabytes(_weights_bytes(largest))}: make that layer smaller, or use a larger machine"
        )
    if weights + gradients + output <= memory_bytes or layer is None:
        return []
    return [
        f"weights ({_gigabytes(weights)}), gradients ({_gigabytes(gradients)}) and the largest output of one sample "
        f"(layer '{layer.name}', {_gigabytes(output)}) need more than the {_gigabytes(memory_bytes)} of memory that "
        "this machine has: it can only run on a device that has more"
    ]


def machine_bytes() -> int:
    """Memory of this machine, or the limit of this process' container if that is less, in bytes."""
    return min([memory_bytes(), *_limits(_LIMITS)])


def _limits(files: Sequence[str]) -> list[int]:
    """The limits that are set; a file without one says "max" or does not exist."""
    texts = [Path(file).read_text(encoding="utf-8").strip() for file in files if os.access(file, os.R_OK)]
    return [int(text) for text in texts if text.isdigit()]


def _weights_bytes(weights: PlannedWeights) -> int:
    return prod(weights.shape) * _NUMBER_BYTES[weights.datatype or DataType.FLOAT]


def _sample_bytes(layer: PlannedLayer) -> int:
    """Bytes of the largest output of a layer for one sample."""
    number = _NUMBER_BYTES[layer.formats[1]] if layer.formats else _NUMBER_BYTES[DataType.FLOAT]
    return max((prod(shape) * number for shape in layer.output_shapes), default=0)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
