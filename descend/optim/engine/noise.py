"""Standard normal noise that is a pure function of (seed, name of the weights, number of the update).

So it does not depend on the order of the tensors, on the runner, or on what else drew random numbers, and a run that
continues needs the seed and the step count alone. It is drawn in pieces, each from a generator of its own, so that no
runner needs the noise of a whole tensor at once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PIECE", "Source", "noise_for"]

PIECE = 2**18  # elements drawn from one generator

# What identifies the noise of one update of one tensor: seed, name, number of the update.
Source = tuple[int, str, int]


def _seed(source: Source, call: int, piece: int) -> int:
    """63 bits that differ wherever an argument does."""
    seed, name, count = source
    text = f"{seed}\0{name}\0{count}\0{call}\0{piece}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def draw(room: Tensor, source: Source, call: int, offset: int) -> None:
    """Fill a flat tensor with the noise that belongs at `offset`, a multiple of `PIECE`, and after it."""
    for first in range(0, room.numel(), PIECE):
        seed = _seed(source, call, (offset + first) // PIECE)
        room[first : first + PIECE].normal_(generator=torch.Generator(room.device).manual_seed(seed))


def noise_for(p: Tensor, seed: int, name: str, count: int) -> Callable[[], Tensor]:
    """The `noise` that a rule may ask for; each call within one update gives other numbers."""
    calls = 0

    def noise() -> Tensor:
        nonlocal calls
        room = torch.empty(p.numel(), dtype=p.dtype, device=p.device)
        draw(room, (seed, name, count), calls, 0)
        calls += 1
        return room.view(p.shape)

    return noise
