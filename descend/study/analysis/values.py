"""What every statistic here takes: lists of numbers in which a failed run is an infinity and never a gap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["check_fraction", "counts", "listed", "numbers", "same_length", "whole"]


def listed(values: Any, name: str = "values") -> NDArray[np.float64]:
    """The values as an array of float64, whatever holds them: a list, an array, a tensor; NaN stays.

    Raises:
        ConfigurationError: they are no list of numbers.
    """
    plain = values.tolist() if hasattr(values, "tolist") else values  # tensors of any type and with gradients too
    try:
        return np.array([float(value) for value in plain], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} must be a list of numbers, got {values!r:.80}") from error


def numbers(values: Iterable[float], name: str = "values", least: int = 1) -> NDArray[np.float64]:
    """The values as an array of float64.

    Raises:
        ConfigurationError: there are fewer than `least`, one is not a number, or one is NaN, which cannot be ordered.
    """
    array = listed(values, name)
    if len(array) < least:
        raise ConfigurationError(
            f"{name} must be a list of at least {least} number{'s' * (least > 1)}, got {len(array)}"
        )
    if (wrong := np.flatnonzero(np.isnan(array))).size:
        raise ConfigurationError(
            f"{name}[{wrong[0]}] is NaN; write a failed run as the worst value there is, inf or -inf, so that it counts"
        )
    return array


def whole(value: Any, name: str) -> int:
    """An integer as an int, whatever type it came in.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or isinstance(value, str) or found != value:
        raise ConfigurationError(f"{name} is {value!r}; expected an integer")
    return found


def counts(k: Any, n: Any, name: str = "k of n") -> tuple[int, int]:
    """Successes and runs as ints.

    Raises:
        ConfigurationError: not 0 ≤ k ≤ n and n ≥ 1, both whole.
    """
    successes, runs = whole(k, f"{name}: k"), whole(n, f"{name}: n")
    if not 0 <= successes <= runs or runs < 1:
        raise ConfigurationError(f"{name}: expected 0 ≤ k ≤ n and n ≥ 1, and got k={k!r}, n={n!r}")
    return successes, runs


def check_fraction(value: Any, name: str) -> None:
    """Raise ConfigurationError unless the value lies between 0 and 1, both left out."""
    if not (isinstance(value, (int, float, np.floating, np.integer)) and math.isfinite(value) and 0 < value < 1):
        raise ConfigurationError(f"{name} is {value!r}; expected a number between 0 and 1")


def same_length(**lists: Sequence[float]) -> None:
    """Raise ConfigurationError unless all lists are of one length."""
    if wrong := [name for name, values in lists.items() if not hasattr(values, "__len__")]:
        raise ConfigurationError(f"{wrong[0]} must be a list of numbers, got {lists[wrong[0]]!r:.80}")
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigurationError(f"one number belongs to each other, and {shown}")
