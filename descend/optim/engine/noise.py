"""Standard normal noise that is a pure function of (seed, name of the weights, number of the update).

So it does not depend on the order of the tensors, on the runner, or on what else drew random numbers, and a run that
continues needs the seed and the step count alone.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["noise_for", "noise_seed"]


def noise_seed(seed: int, name: str, count: int, call: int) -> int:
    """63 bits that differ wherever an argument does."""
    text = f"{seed}\0{name}\0{count}\0{call}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def noise_for(p: Tensor, seed: int, name: str, count: int) -> Callable[[], Tensor]:
    """The `noise` that a rule may ask for; each call within one update gives other numbers."""
    calls = 0

    def noise() -> Tensor:
        nonlocal calls
        generator = torch.Generator(p.device).manual_seed(noise_seed(seed, name, count, calls))
        calls += 1
        return torch.randn(p.shape, dtype=p.dtype, device=p.device, generator=generator)

    return noise
