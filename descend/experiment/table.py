"""The layers of a checked graph as a table for people."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from descend.experiment.check import Checked

__all__ = ["layer_table"]


def layer_table(checked: Checked) -> str:
    """One line a layer: name, kind, parents, shape of its output, and how many trained numbers it holds first."""
    plan = checked.plan
    rows = [("layer", "kind", "parents", "output", "trained")]
    for layer in plan.layers:
        if layer.inserted:
            continue
        counts = [
            prod(w.shape) for name in layer.weights if (w := plan.weights[name]).layer == layer.name and w.trainable
        ]
        shape = " x ".join(map(str, layer.output_shape))
        rows.append(
            (
                layer.name,
                type(layer.layer).__name__,
                ", ".join(layer.parents),
                shape,
                f"{sum(counts):,}" if counts else "",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = sum(prod(w.shape) for w in plan.weights.values() if w.trainable)
    samples = ", ".join(f"{mode.value} {len(checked.readers[mode.role]):,}" for mode in checked.modes)
    return "\n".join([*lines, f"{total:,} trained numbers; samples: {samples}", *plan.notes])
