"""What every statistic here takes: lists of numbers in which a failed run is an infinity and never a gap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["check_counts", "check_fraction", "numbers", "same_length"]


def numbers(values: Iterable[float], name: str = "values", least: int = 1) -> NDArray[np.float64]:
    """The values as an array of float64.

    Raises:
        ConfigurationError: there are fewer than `least`, or one is NaN, which no statistic can place.
    """
    array = np.asarray(list(values), dtype=np.float64)
    if array.ndim != 1 or len(array) < least:
        raise ConfigurationError(
            f"{name} has the shape {array.shape} and is to be a list of at least {least} number{'s' * (least > 1)}"
        )
    if (wrong := np.flatnonzero(np.isnan(array))).size:
        raise ConfigurationError(
            f"{name}[{wrong[0]}] is NaN; write a failed run as the worst value there is, inf or -inf, so that it counts"
        )
    return array


def check_counts(k: int, n: int, name: str = "k of n") -> None:
    """Raise ConfigurationError unless 0 ≤ k ≤ n and n ≥ 1, both whole."""
    if k != int(k) or n != int(n) or not 0 <= k <= n or n < 1:
        raise ConfigurationError(f"{name}: expected whole numbers with 0 ≤ k ≤ n and n ≥ 1, and got k={k!r}, n={n!r}")


def check_fraction(value: float, name: str) -> None:
    """Raise ConfigurationError unless the value lies between 0 and 1, both left out."""
    if not (math.isfinite(value) and 0 < value < 1):
        raise ConfigurationError(f"{name} is {value!r}; expected a number between 0 and 1")


def same_length(**lists: Sequence[float]) -> None:
    """Raise ConfigurationError unless all lists are of one length."""
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigurationError(f"one number belongs to each other, and {shown}")
