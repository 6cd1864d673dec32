"""Signals as requests: a handler only notes the signal, and the loop ends between two steps."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__ = ["Interrupted", "SignalHandler"]

_WATCHED = ("SIGINT", "SIGTERM", "SIGUSR1")


class Interrupted(BaseException):
    """A signal came while the run was waiting: whoever waits can end at once. No error, so that no reader takes it for
    one.
    """


class SignalHandler:
    """While it is entered, the first Ctrl-C, SIGTERM or SIGUSR1 asks for an end and a second Ctrl-C interrupts at once.

    While the run waits for something outside of it, as `wait` says, the first one ends the waiting by `Interrupted`.

    Handlers that stood before are restored on leaving. Outside the main thread, where Python takes no handlers, it
    watches nothing.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._waiting = False
        self._before: dict[int, Any] = {}

    def requested(self) -> str | None:
        """The name of the signal that asked for an end, as a user knows it, or None."""
        return self._name

    def wait(self, waiting: bool) -> None:
        """Say whether the run is waiting, with nothing under way that has to be finished first."""
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
            for name in _WATCHED:
                number = getattr(signal, name, None)  # SIGUSR1 does not exist everywhere
                if number is not None:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
