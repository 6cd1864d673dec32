"""What ends a pass before its time: a criterion, a callback's wish, a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import Stopped
from descend.runtime import Interrupted
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data import Batch
    from descend.train.session import Session
    from descend.train.stopping import Stop

__all__ = ["interruptible", "raise_if_stop_requested", "stop_reason"]


def stop_reason(session: Session, stop: Stop) -> str | None:
    """Why training is to end here, as a callback or the criterion says it; None where it goes on."""
    return session.asked_to_stop or stop.reason(session.progress())


def raise_if_stop_requested(session: Session) -> None:
    """End the run between two steps if a signal has asked for it."""
    if signal := session.agreed_stop():
        at = session.contexts[Mode.TRAIN]
        where = f"in epoch {at.epoch} (step {at.position} of the epoch)"
        raise Stopped(f"stopped by {signal} after step {at.step:,}, {where}")


def interruptible(session: Session, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batch after batch. A signal that comes while one is waited for ends the run there: no step is under way."""
    while True:
        try:
            session.waits(True)
            batch = next(batches, None)
            session.waits(False)
        except Interrupted:
            raise_if_stop_requested(session)
            raise
        except BaseException:
            session.waits(False)
            raise
        if batch is None:
            return
        yield batch
