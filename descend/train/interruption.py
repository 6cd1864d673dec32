"""What interrupts a loop over mini-batches: a signal, between two steps or while it waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import Stopped
from descend.runtime import Interrupted
from descend.train.stop_signal import DIRECTORY_LOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data import Batch
    from descend.train.run import Run

__all__ = ["interruptible", "raise_if_stop_requested"]


def raise_if_stop_requested(run: Run) -> None:
    """End the run between two steps if a signal has asked for it.

    Raises:
        Stopped: it has.
        DirectoryLost: the run directory is no longer that of this run; on all ranks.
    """
    if signal := run.strategy.stop_requested():
        if signal == DIRECTORY_LOST:
            run.store.require_ownership()
        at = run.state.training
        where = f"in epoch {at.epoch + 1} (step {at.position} of the epoch)"
        raise Stopped(f"stopped by {signal} after step {at.step:,}, {where}")


def interruptible(run: Run, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batch after batch. A signal that comes while one is waited for ends the run there: no step is under way."""
    while True:
        try:
            run.stop.waiting(True)
            batch = next(batches, None)
            run.stop.waiting(False)
        except Interrupted:
            raise_if_stop_requested(run)
            raise
        except BaseException:
            run.stop.waiting(False)
            raise
        if batch is None:
            return
        yield batch
