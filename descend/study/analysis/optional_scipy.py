"""The one library that some of the statistics need, imported where they need it."""

from __future__ import annotations

import importlib
from typing import Any

from descend.errors import MissingExtra

__all__ = ["special"]


def special(what: str) -> Any:
    """scipy.special, for the quantiles that have no closed form.

    Args:
        what: What is computed, for the message.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        return importlib.import_module("scipy.special")
    except ImportError as error:
        raise MissingExtra(f"{what} needs scipy: pip install 'descend[study]'") from error
