"""Making very many objects at once."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["gc_paused"]


@contextmanager
def gc_paused() -> Generator[None]:
    """Pause the collector of reference cycles while objects are made that will all stay.

    It would walk through them again and again and find nothing: with 100,000 layers that is half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
