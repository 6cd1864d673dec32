"""Where callbacks print: standard output, above the progress bar while one is drawn, and of several ranks the first."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["claim", "is_muted", "listening", "muted", "release", "say", "with_unit"]


class _Console(Protocol):
    def print(self, text: str, /, *, markup: bool, highlight: bool, soft_wrap: bool) -> object: ...


_claims: list[_Console] = []
_listeners: list[Callable[[str], None]] = []
_mutes: list[None] = []


def claim(console: _Console) -> None:
    """From now on lines go through `console`, which keeps them apart from what it draws."""
    _claims.append(console)


def release(console: _Console) -> None:
    """Undo `claim`."""
    if console in _claims:
        _claims.remove(console)


@contextmanager
def listening(listener: Callable[[str], None]) -> Generator[None]:
    """Hand every line that is printed to `listener` as well."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def muted() -> Generator[None]:
    """Print nothing for the time being."""
    _mutes.append(None)
    try:
        yield
    finally:
        _mutes.pop()


def is_muted() -> bool:
    """Whether nothing is to be drawn either."""
    return bool(_mutes)


def say(text: str) -> None:
    """Print lines for the user."""
    if _mutes:
        return
    for listener in _listeners:
        listener(text)
    if _claims:
        _claims[-1].print(text, markup=False, highlight=False, soft_wrap=True)  # as it is, brackets and all
    else:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def with_unit(value: float, unit: str) -> str:
    """A metric as LBANN prints it: what has the unit "%" is multiplied by 100."""
    return f"{value * 100 if unit == '%' else value:g}{unit}"
