"""Imports scipy where a statistic needs it: it is not among what the package requires."""

from __future__ import annotations

import importlib
from typing import Any

from descend.errors import MissingExtra, missing_library

__all__ = ["scipy"]


def scipy(module: str, what: str) -> Any:
    """A module of scipy.

    Args:
        module: "special" or "stats".
        what: The statistic that needs it, for the message.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError as error:
        raise MissingExtra(missing_library(what, "scipy")) from error
