"""Studies: which optimizer, which rate, which batch size, fairly, and "cannot rank" when that is the truth.

analysis    the statistics, pure functions over numbers
simulate    the noisy quadratic model, whose answers are known
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from descend.study import analysis as analysis
    from descend.study import simulate as simulate

# Where each public name lives; fetched when it is first used, so that the command line stays quick.
_ROOMS = ("analysis", "simulate")
_NAMES: dict[str, str] = {}

__all__ = ["analysis", "simulate"]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module."""
    if name in _ROOMS:
        return importlib.import_module(f"descend.study.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"descend.study.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'descend.study' has no attribute '{name}'")
