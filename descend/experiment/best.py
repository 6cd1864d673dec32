"""The best epoch of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.files import has_folder
from descend.train.callback import Monitored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from descend.train import Callback

__all__ = ["Best", "best_epoch", "monitored_metric", "steps_in"]


@dataclass(frozen=True)
class Best:
    """The best epoch of a run.

    Attributes:
        metric: By what it is the best, such as "validation/objective".
        value: The metric there.
        epoch: Epochs finished there.
        step: Updates applied there.
        path: The checkpoint with the weights of that epoch; None where none was kept.
    """

    metric: str
    value: float
    epoch: int
    step: int
    path: Path | None


def monitored_metric(callbacks: Iterable[Callback], history: Sequence[Mapping[str, Any]]) -> Monitored:
    """By what the best epoch is chosen.

    Returns:
        What a callback monitors, the first that does; else the validation objective where that was measured, else the
        training objective.
    """
    for callback in callbacks:
        if callback.monitored is not None:
            return callback.monitored
    mode = "validation" if any(row.get("mode") == "validation" for row in history) else "train"
    return Monitored(f"{mode}/objective", "min")


def best_epoch(history: Iterable[Mapping[str, Any]], monitored: Monitored, checkpoints: Path | None) -> Best | None:
    """The best row of a history, the first of equal ones; None where the metric was never a number.

    Args:
        history: Rows as in `metrics.jsonl`.
        monitored: The metric.
        checkpoints: The checkpoints folder of the run; None where it kept no files.
    """
    mode, _, name = monitored.metric.partition("/")
    sign = 1.0 if monitored.direction == "min" else -1.0
    rows = [row for row in history if row.get("mode") == mode and _is_number(row.get(name))]
    if not rows:
        return None
    row = min(rows, key=lambda row: sign * row[name])
    path = _checkpoint_of(row["step"], checkpoints, monitored.restored)
    return Best(monitored.metric, float(row[name]), int(row["epoch"]), int(row["step"]), path)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _checkpoint_of(step: int, checkpoints: Path | None, restored: bool) -> Path | None:
    """The checkpoint of a step if it is there; the last one, where the best weights were put back at the end."""
    if checkpoints is None:
        return None
    path = checkpoints / f"step-{max(steps_in(checkpoints), default=-1) if restored else step}"
    return path if has_folder(path) else None


def steps_in(checkpoints: Path) -> list[int]:
    """Steps of the checkpoints in a folder, in ascending order; what they hold is verified when they are loaded."""
    names = [path.name.removeprefix("step-") for path in checkpoints.glob("step-*")]
    return sorted(int(name) for name in names if name.isdecimal())
