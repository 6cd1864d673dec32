"""The global generators of torch, NumPy and Python, which a user's data set may draw from."""

from __future__ import annotations

import ctypes
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["kept", "seed", "snapshot"]

_MT19937_BYTES = 4 * 624 + 4  # its words and the place of the next one


def seed(number: int) -> None:
    """Put all three at the start of one stream."""
    import torch

    torch.default_generator.manual_seed(number >> 1)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def snapshot() -> tuple[Any, ...]:
    """Equal to an earlier one as long as nobody draws from any of the three."""
    import torch

    return torch.default_generator.get_state().numpy().tobytes(), _numpys(), random.getstate()


@contextmanager
def kept() -> Generator[None, None, None]:
    """Leave all three as they were."""
    import torch

    of_torch, of_numpy, of_python = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _numpys() -> Any:
    generator = cast("Any", np.random).get_bit_generator()  # missing in NumPy's own types
    if not isinstance(generator, np.random.MT19937):  # somebody has called np.random.set_bit_generator
        return str(generator.state)
    # Its `state` takes 30 µs, which is long beside a batch of a small network.
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
