"""Prints for callbacks: to standard output, above a progress bar while one is drawn, and on rank zero only."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from descend.terminal import emit
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["claim", "is_muted", "listening", "muted", "quiet", "release", "say", "with_unit"]


class _Console(Protocol):
    def print(self, text: str, /, *, markup: bool, highlight: bool, soft_wrap: bool) -> object: ...


_claims: list[_Console] = []
_listeners: list[Callable[[str], None]] = []
_mutes: list[None] = []
_quiets: list[None] = []


def claim(console: _Console) -> None:
    """Print lines through `console` from now on, which separates them from the bar that it draws."""
    _claims.append(console)


def release(console: _Console) -> None:
    """Undo `claim`."""
    if console in _claims:
        _claims.remove(console)


@contextmanager
def listening(listener: Callable[[str], None]) -> Generator[None]:
    """Pass every printed line to `listener`, too."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def muted() -> Generator[None]:
    """Print nothing within this context."""
    _mutes.append(None)
    try:
        yield
    finally:
        _mutes.pop()


@contextmanager
def quiet() -> Generator[None]:
    """Print nothing within this context; listeners, such as the log of a run, still get every line."""
    _quiets.append(None)
    try:
        yield
    finally:
        _quiets.pop()


def is_muted() -> bool:
    """Whether nothing is printed, so that a progress bar must not be drawn."""
    return bool(_mutes or _quiets)


def say(text: str, even_muted: bool = False) -> None:
    """Print lines for the user; other control characters than newlines and tabs are escaped.

    Output that is closed or full stops nothing; see `descend.terminal.emit`.

    Args:
        text: The lines.
        even_muted: Print them within `muted` as well, on a rank that speaks for one of several trainers.
    """
    if _mutes and not even_muted:
        return
    text = printable(text, keep="\n\t")
    for listener in _listeners:
        listener(text)
    if _quiets:
        return
    if _claims:
        _claims[-1].print(text, markup=False, highlight=False, soft_wrap=True)  # brackets are no markup
    else:
        emit(f"{text}\n", sys.stdout)


def with_unit(value: float, unit: str) -> str:
    """A metric as LBANN prints it: a value of the unit "%" is multiplied by 100."""
    return f"{value * 100 if unit == '%' else value:g}{unit}"
