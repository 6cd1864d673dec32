"""The text of an error about a gradient that is not finite: which weights, which samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.data import Batch

__all__ = ["diagnose_batch", "has_nonfinite_input", "nonfinite_message"]

_SHOWN = 16


def nonfinite_message(
    step: int, weights: Sequence[str], objective: float, causes: Sequence[str], in_a_row: int
) -> list[str]:
    """The lines of the error.

    Args:
        step: Number of the update that was not made, from 1.
        weights: Names of the weights whose gradient is not finite.
        objective: The objective on the mini-batch.
        causes: What there is to say about the samples; a line each.
        in_a_row: How many steps in a row were like this.
    """
    streak = f", the last of {in_a_row} steps in a row" if in_a_row > 1 else ""
    return [
        f"step {step:,}{streak}: the gradient of {_listed(weights)} is not finite; the loss is {objective:g}",
        *causes,
        "weights and optimizer state are those before the step; look at these samples, lower the rate, clip gradients "
        "(clip_global_norm=1.0), or pass on_nonfinite='skip'",
    ]


def diagnose_batch(batch: Batch) -> str:
    """What the samples of a mini-batch have to do with it."""
    suspects = _suspects(batch)
    what = (
        f"the values of these samples are not finite: {'; '.join(suspects[:_SHOWN])}"
        if suspects
        else f"the values of its samples are finite; their numbers are {_listed(batch.ids.tolist())}"
    )
    return f"epoch {batch.epoch + 1}, mini-batch {batch.step + 1}: {what}"


def has_nonfinite_input(batch: Batch) -> bool:
    """Whether a sample of a mini-batch is not finite itself."""
    return bool(_suspects(batch))


def _listed(items: Sequence[object]) -> str:
    rest = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(f"'{item}'" if isinstance(item, str) else str(item) for item in items[:_SHOWN]) + rest


def _suspects(batch: Batch) -> list[str]:
    """Samples that hold a NaN or an infinity themselves, with the field."""
    found: list[str] = []
    for name, values in batch.fields.items():
        if isinstance(values, np.ndarray):
            finite = np.isfinite(values) if values.dtype.kind in "fc" else np.ones(len(values), bool)
        else:
            finite = torch.isfinite(values.detach()).cpu().numpy()
        if not finite.all():
            bad = ~finite.all(axis=tuple(range(1, finite.ndim)))
            found += [f"sample {i} (field '{name}')" for i in batch.ids[bad].tolist()]
    return found
