"""What may end a run before its criterion does: a signal to this process, a callback, or the loss of its directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import Stopped
from descend.runtime import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from descend.data import Batch
    from descend.train.run import Run

__all__ = ["DIRECTORY_LOST", "StopSignal", "interruptible", "raise_if_stop_requested"]

DIRECTORY_LOST = "the loss of its run directory"  # in the place of a signal's name, which all ranks hear of


class StopSignal:
    """Asks for the end of a run.

    Args:
        requested: Returns the name of a signal that this process has received, or None.
        set_waiting: Called with True where the process begins to wait for data and a signal may interrupt it at once,
            and with False where it no longer does.

    Attributes:
        reason: Why a callback wants training to end; None where none does.
    """

    resets_with_optimizer: ClassVar[bool] = False

    def __init__(
        self,
        requested: Callable[[], str | None] = lambda: None,
        set_waiting: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        self._requested, self._set_waiting = requested, set_waiting
        self._deferred = 0
        self.reason: str | None = None

    def listen(self, requested: Callable[[], str | None], set_waiting: Callable[[bool], None]) -> None:
        """From here on, ask these; see the arguments of the class."""
        self._requested, self._set_waiting = requested, set_waiting

    def watch(self, lost: Callable[[], str | None]) -> None:
        """Ask for the end of the run by the name DIRECTORY_LOST as soon as `lost` says that its directory is gone."""
        asked = self._requested
        self._requested = lambda: DIRECTORY_LOST if lost() else asked()

    def requested(self) -> str | None:
        """The name of a signal that this process has received, or None."""
        return None if self._deferred else self._requested()

    def waiting(self, waiting: bool) -> None:
        """Say whether the process waits for data, so that a signal may interrupt it."""
        if not self._deferred:
            self._set_waiting(waiting)

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Within this block a signal waits: other trainers count on what is done here."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    def stop(self, reason: str) -> None:
        """End training after the step under way; the first reason counts."""
        self.reason = self.reason or reason

    def state_dict(self) -> dict[str, Any]:
        """The reason of a callback."""
        return {"reason": self.reason}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.reason = state_dict["reason"]


# ---- what interrupts a loop over mini-batches: a signal, between two steps or while it waits for data


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
