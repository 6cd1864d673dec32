"""A table of the layers of a checked graph."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from descend.terminal import TextTable, aligned
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.experiment.check import Checked
    from descend.graph import Plan, PlannedLayer

__all__ = ["layer_parts", "layer_rows", "layer_table"]

_BYTES = 4  # of a float32
_RIGHT_ALIGNED = ("trained", "multiply-adds", "bytes")


def layer_table(checked: Checked, batch_size: int | None = None) -> str:
    """One line per layer: name, kind, parents, output shape, and number of trainable parameters it introduces.

    Args:
        checked: A checked experiment.
        batch_size: If given, adds columns of weights with shapes, multiply-adds per sample and bytes of the outputs of
            this many samples in float32, and their sums. Most outputs are kept in memory for the backward pass.
    """
    table, *remarks = layer_parts(checked, batch_size)
    return "\n".join([*aligned(table), *remarks])


def layer_parts(checked: Checked, batch_size: int | None = None) -> tuple[TextTable, *tuple[str, ...]]:
    """The table and the lines under it; see `layer_table`."""
    plan = checked.plan
    total = sum(prod(w.shape) for w in plan.weights.values() if w.trainable)
    samples = ", ".join(f"{mode.value} {len(checked.readers[mode.role]):,}" for mode in checked.modes)
    return (
        TextTable(layer_rows(plan, batch_size), _RIGHT_ALIGNED),
        f"{total:,} trainable parameters; samples: {samples}",
        *_sums(plan, batch_size),
        *map(printable, (*plan.notes, *checked.warnings)),
    )


def layer_rows(plan: Plan, batch_size: int | None = None) -> list[tuple[str, ...]]:
    """The heads of the columns and a row for each layer, as text; see `layer_table`."""
    shown = [layer for layer in plan.layers if not layer.inserted]
    short = batch_size is None
    head = (
        "layer",
        "kind",
        "parents",
        "output",
        *_RIGHT_ALIGNED[: 1 if short else 3],
        *(() if short else ("weights",)),
    )
    known = {layer.name: layer for layer in plan.layers}
    return [head, *(tuple(map(printable, _row(plan, layer, known, batch_size))) for layer in shown)]


def _row(plan: Plan, layer: PlannedLayer, known: Mapping[str, PlannedLayer], batch_size: int | None) -> tuple[str, ...]:
    own = [plan.weights[name] for name in layer.weights]
    trained = sum(prod(w.shape) for w in own if w.layer == layer.name and w.trainable)
    shape = ", ".join(_shape(one) for one in dict.fromkeys(layer.output_shapes))
    parents = ", ".join(_given(name, known) for name in layer.parents)
    row = (layer.name, layer.kind, parents, shape, f"{trained:,}" if trained else "")
    if batch_size is None:
        return row
    products = _multiply_adds(layer)
    weights = ", ".join(f"{w.name} ({_shape(w.shape)})" for w in own)
    return (*row, f"{products:,}" if products else "", f"{_entries(layer) * batch_size * _BYTES:,}", weights)


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _given(name: str, known: Mapping[str, PlannedLayer]) -> str:
    """A parent as described, behind layers that the check has inserted."""
    while known[name].inserted:
        name = known[name].parents[0]
    return name


def _multiply_adds(layer: PlannedLayer) -> int:
    return layer.layer.multiply_adds(layer.input_shapes, layer.output_shape)


def _entries(layer: PlannedLayer) -> int:
    return sum(map(prod, layer.output_shapes))


def _sums(plan: Plan, batch_size: int | None) -> list[str]:
    if batch_size is None:
        return []
    layers = [layer for layer in plan.layers if not layer.inserted]
    outputs = sum(map(_entries, layers)) * batch_size * _BYTES
    weights = sum(prod(w.shape) * (2 if w.trainable else 1) for w in plan.weights.values()) * _BYTES
    return [
        f"{sum(map(_multiply_adds, layers)):,} multiply-adds for the forward pass of a sample",
        f"{outputs:,} bytes of outputs at a mini-batch of {batch_size:,}, and {weights:,} of weights and gradients; "
        "the optimizer's state comes on top",
    ]
