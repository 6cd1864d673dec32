"""Counter-based random numbers: functions of their purpose, so no generator has a state to save.

A number depends on a key (seed, epoch, purpose) and a counter (sample, draw) and on nothing else: not on the batch, the
rank or the thread that requests it.

    mix(x)      x ← (x ⊕ x≫30)·0xbf58476d1ce4e5b9;  x ← (x ⊕ x≫27)·0x94d049bb133111eb;  x ⊕ x≫31
    uniform     the upper 53 bits of mix(key + counter·γ), times 2⁻⁵³, with γ = 0x9e3779b97f4a7c15

Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators,
https://doi.org/10.1145/2660193.2660195 (the generator SplitMix64, whose n-th output is this function of key + n·γ).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GOLDEN", "Draws", "key_of", "mix"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the odd integer nearest to 2⁶⁴ / golden ratio


def key_of(*parts: str | int) -> np.uint64:
    """A 64-bit key for a purpose, such as `key_of("order", seed, epoch)`; other parts give an unrelated key."""
    text = ":".join(str(part) for part in parts)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble each element; a bijection of the 64-bit integers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Draws:
    """The random numbers of one batch: a row for each sample, each a function of (key, sample) alone.

    Args:
        key: What the numbers are for, from `key_of`.
        samples: (n,) the numbers of the samples in their data set.
    """

    def __init__(self, key: np.uint64, samples: NDArray[np.int64]) -> None:
        self._keys = mix(mix(samples.astype(np.uint64)) + key)
        self._taken = 0

    def of_rows(self, rows: slice) -> Draws:
        """The numbers of some of the samples from here on; taking them leaves these as they are."""
        some = object.__new__(Draws)
        some._keys, some._taken = self._keys[rows], self._taken
        return some

    def after(self, other: Draws) -> Draws:
        """The numbers of these samples behind those that were taken of another one."""
        self._taken = other._taken
        return self

    def uniform(self, columns: int) -> NDArray[np.float64]:
        """The next `columns` numbers of each sample, (n, columns) in [0, 1)."""
        counters = np.arange(self._taken + 1, self._taken + columns + 1, dtype=np.uint64) * GOLDEN
        self._taken += columns
        return (mix(self._keys[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, end: int) -> NDArray[np.int64]:
        """One number for each sample, (n,) in 0, 1, ..., end − 1."""
        return (self.uniform(1)[:, 0] * end).astype(np.int64)

    def normal(self, columns: int) -> NDArray[np.float64]:
        """(n, columns) numbers of the distribution N(0, 1), by the transform of Box and Muller."""
        half = -(-columns // 2)
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(half)))  # log1p(-u): u may be 0 and is never 1
        angle = 2.0 * np.pi * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :columns]
