"""A request for a checkpoint: what for, and how long it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["STOPPED", "SaveRequest"]

STOPPED = "stopped"  # purpose of a checkpoint written at a signal; superseded by the next one of another purpose


@dataclass(frozen=True)
class SaveRequest:
    """How to write one checkpoint, and how long to keep it.

    Attributes:
        who: The purpose, such as the name of a callback; each has its own retention rule, and a checkpoint is kept as
            long as any purpose keeps it.
        keep: Number of the newest checkpoints to keep for this purpose; 0 keeps all.
        score: The metric by which the best checkpoint is kept in addition; None without one.
        best: Whether the lowest or the highest score is best.
        asynchronous: Write in a background thread while training continues.
        then: Called with the checkpoint's folder when it is complete.
    """

    who: str = "user"
    keep: int = 0
    score: float | None = None
    best: Literal["lowest", "highest"] = "lowest"
    asynchronous: bool = False
    then: Callable[[Path], None] = lambda checkpoint: None
