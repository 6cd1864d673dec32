"""Functions of a Python reader that gives the rows of `data.npy` in the current folder; `lbann.evaluate` uses it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["get_sample", "num_samples", "sample_dims"]


@cache
def _data() -> NDArray[Any]:
    return np.load("data.npy")


def get_sample(index: int) -> NDArray[Any]:
    """One sample, as one row of numbers."""
    return _data()[index].astype(np.float32).ravel()


def num_samples() -> int:
    """Number of samples."""
    return len(_data())


def sample_dims() -> tuple[int, ...]:
    """Dimensions of a sample; a sample that is one number has one entry."""
    return _data().shape[1:] or (1,)
