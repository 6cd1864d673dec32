"""Where callbacks print: standard output, above the progress bar while one is drawn."""

from __future__ import annotations

import sys
from typing import Protocol

__all__ = ["claim", "release", "say"]


class _Console(Protocol):
    def print(self, text: str, /, *, markup: bool, highlight: bool, soft_wrap: bool) -> object: ...


_claims: list[_Console] = []


def claim(console: _Console) -> None:
    """From now on lines go through `console`, which keeps them apart from what it draws."""
    _claims.append(console)


def release(console: _Console) -> None:
    """Undo `claim`."""
    if console in _claims:
        _claims.remove(console)


def say(text: str) -> None:
    """Print lines for the user."""
    if _claims:
        _claims[-1].print(text, markup=False, highlight=False, soft_wrap=True)  # as it is, brackets and all
    else:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
