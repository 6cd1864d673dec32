"""Signal handler: Ctrl-C, SIGTERM and SIGUSR1 request a stop, and the training loop ends between two steps."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

from descend.machine import STOP_SIGNALS

if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__ = ["Interrupted", "SignalHandler"]


class Interrupted(BaseException):
    """A signal came while the run was waiting, so that it can end at once.

    A `BaseException`, so that no `except Exception` of a data reader catches it.
    """


class SignalHandler:
    """Context in which the first Ctrl-C, SIGTERM or SIGUSR1 requests a stop, and a second Ctrl-C interrupts at once.

    While the run waits for something external, as set by `wait`, the first signal raises `Interrupted`. Leaving the
    context restores the handlers from before. A request is one to all contexts around it: what came before an inner one
    began stops that too, and what came within it the outer one. Outside the main thread Python allows no handlers, and
    this does nothing.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._waiting = False
        self._before: dict[int, Any] = {}
        self._around: SignalHandler | None = None

    def requested(self) -> str | None:
        """The signal that requested a stop, as a user knows it ("Ctrl-C", "SIGTERM"), or None."""
        return self._name

    def wait(self, waiting: bool) -> None:
        """Set whether the run is waiting, with no work in progress that has to be completed first."""
        self._waiting = waiting

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self._waiting:
            self._waiting = False
            raise Interrupted

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._note)
            owners = [getattr(handler, "__self__", None) for handler in self._before.values()]
            self._around = next((owner for owner in owners if isinstance(owner, SignalHandler)), None)
            if self._around is not None:
                self._name = self._name or self._around._name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._around is not None:
            self._around._name = self._around._name or self._name
