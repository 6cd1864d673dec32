"""Standard normal noise that is a pure function of (seed, name of the weights, number of the update, place).

So it does not depend on the order of the tensors, on the runner, on the number of threads, or on what else drew random
numbers; a run that continues needs the seed and the step count alone, and no runner keeps noise in memory. Kernels
compute it themselves, to the same bit (compiler/noise.h).

    block b of 64 elements    words w₀ w₁ w₂ w₃ of 16 counters: Philox 4x32-10 of the counter (16 b + j, update, call)
                              under a key that is a digest of seed and name
    elements j and 16 + j     √(−2 log u) times cosine and sine of an angle (Box and Muller), u from w₀, angle from w₁
    elements 32 + j, 48 + j   the same of w₂ and w₃

Elements are counted row after row, whatever their strides. All is computed in float32, whose products, sums and
roots are the same on every processor, with polynomials for logarithm, sine and cosine that are right to float32's last
bits; so float64 weights get noise with float32's 24 bits. The largest size of a number is 6.6.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", https://doi.org/10.1145/2063384.2063405
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.optim.compiler.layout import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PIECE", "Source", "draw", "key_of", "noise_for", "philox"]

PIECE = 2**18  # elements that the eager runners draw at once
CHUNK = {"cpu": 2**15, "cuda": 2**24}  # elements computed at once: on a CPU as many as stay in its cache
LANES = BLOCK // 4  # counters of a block
MASK = 0xFFFFFFFF
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)

# Coefficients from the highest power down, fitted for the least largest relative error.
LOG = (0.087004304, -0.14267486, 0.14914769, -0.16577585, 0.19963063, -0.25001338, 0.3333391, -0.5)
SINE = (-0.004602177, 0.07968023, -0.6459635, 1.5707964)
COSINE = (-0.020408353, 0.25359863, -1.2336971, 1.0)

# What identifies the noise of one update of one tensor: seed, name, number of the update.
Source = tuple[int, str, int]


@functools.lru_cache(maxsize=2**16)
def key_of(seed: int, name: str) -> int:
    """64 bits that differ wherever an argument does."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


def philox(counter: Any, update: int, call: int, key: int) -> list[Any]:
    """The four words of Philox 4x32-10 for each counter.

    Args:
        counter: Integers from 0 up in int64, a NumPy array or a tensor of any shape.
        update: Third word of each counter.
        call: Fourth word of each counter.
        key: 64 bits.

    Returns:
        Four arrays of the same kind and shape, each from 0 to 2³² − 1.
    """
    # A product of 64 bits overflows into the sign, which both wrap around; a shift then fills up with it.
    c0, c1, c2, c3 = counter & MASK, (counter >> 32) & MASK, counter * 0 + update, counter * 0 + call
    k0, k1 = key & MASK, key >> 32
    for _ in range(10):
        x, y = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((y >> 32) & MASK) ^ c1 ^ k0, y & MASK
        c2, c3 = ((x >> 32) & MASK) ^ c3 ^ k1, x & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return [c0, c1, c2, c3]


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _pair(first: Any, second: Any, real: Callable[[Any], Any], whole: Any, root: Callable[[Any], Any]) -> list[Any]:
    """Two normal numbers from two words, as in compiler/noise.h.

    Args:
        first: Words that give the radius.
        second: Words that give the angle.
        real: Turns integers into float32.
        whole: The type of 32 bits as which float32 is read.
        root: The square root as IEEE 754 rounds it.
    """
    u = real(first >> 1) * 2.0**-31 + 2.0**-32
    bits = u.view(whole)
    e = (bits - 0x3F3504F3) >> 23
    f = (bits - e * 2**23).view(u.dtype) - 1.0
    radius = root(-(real(e) * 0.6931472 + (f + _polynomial(f, LOG) * (f * f))))
    r = real((second & 0x3FFFFFFF) - 0x20000000) * 2.0**-30
    q = r * r
    s, c = _polynomial(q, SINE) * r, _polynomial(q, COSINE)
    signs = real(1 - ((second >> 30) & 2)), real(1 - ((second >> 29) & 2))
    return [radius * (c - s) * signs[0], radius * (c + s) * signs[1]]


def draw(room: Tensor, source: Source, call: int, offset: int) -> None:
    """Fill a flat tensor with the noise that belongs at element `offset`, a multiple of `BLOCK`, and after it."""
    seed, name, count = source
    on_cpu = room.device.type == "cpu"
    size = CHUNK["cpu" if on_cpu else "cuda"]
    for at in range(0, room.numel(), size):
        part = room[at : at + size]
        first, blocks = (offset + at) // BLOCK * LANES, -(-part.numel() // BLOCK)
        if on_cpu:
            counter = np.arange(first, first + blocks * LANES).reshape(blocks, 1, LANES)
            words = philox(counter, count & MASK, call, key_of(seed, name))
            pairs = [_pair(words[i], words[i + 1], lambda x: x.astype(np.float32), np.int32, np.sqrt) for i in (0, 2)]
            normal = torch.from_numpy(np.concatenate([*pairs[0], *pairs[1]], axis=1))
        else:
            counter = torch.arange(first, first + blocks * LANES, device=room.device).view(blocks, 1, LANES)
            words = philox(counter, count & MASK, call, key_of(seed, name))
            pairs = [_pair(words[i], words[i + 1], lambda x: x.float(), torch.int32, torch.sqrt) for i in (0, 2)]
            normal = torch.cat([*pairs[0], *pairs[1]], dim=1)
        part.copy_(normal.view(-1)[: part.numel()])


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
