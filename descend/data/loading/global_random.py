"""Seeds, snapshots and restores the global generators of torch, NumPy and Python, from which a data set may draw."""

from __future__ import annotations

import ctypes
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["kept", "seed", "snapshot"]

_MT19937_BYTES = 4 * 624 + 4  # its words and the position of the next one


def seed(number: int) -> None:
    """Seed all three."""
    import torch

    torch.default_generator.manual_seed(number >> 1)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def snapshot() -> tuple[Any, ...]:
    """The state of all three; equal to an earlier snapshot if none of the three was drawn from."""
    import torch

    return torch.default_generator.get_state().numpy().tobytes(), _numpys(), random.getstate()


@contextmanager
def kept() -> Generator[None, None, None]:
    """Restore the state of all three on exit."""
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
    if not isinstance(generator, np.random.MT19937):  # np.random.set_bit_generator was called
        return str(generator.state)
    # Its `state` takes 30 µs, which is long compared with a batch of a small network.
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
