"""The order of samples, and random numbers, as functions of their purpose, so no generator has a state to save.

A number depends on a key (seed, epoch, purpose) and a counter (sample, draw) and on nothing else: not on the batch, the
rank or the thread that requests it.

    mix(x)      x ← (x ⊕ x≫30)·0xbf58476d1ce4e5b9;  x ← (x ⊕ x≫27)·0x94d049bb133111eb;  x ⊕ x≫31
    uniform     the upper 53 bits of mix(key + counter·γ), times 2⁻⁵³, with γ = 0x9e3779b97f4a7c15

Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators,
https://doi.org/10.1145/2660193.2660195 (the generator SplitMix64, whose n-th output is this function of key + n·γ).
"""

from __future__ import annotations

import hashlib
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["GOLDEN", "Draws", "key_of", "mix", "order", "orders", "permute"]

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


# ---- the order of an epoch's samples, as a pure function of the position
#
# Sample number at position x of n: a Feistel network whose halves are the digits (L, R) of x = L·b + R, with
# a = ⌈√n⌉ and b = ⌈n/a⌉, so that a·b exceeds n by less than a. For each round, with an own key k
#
#     L ← (L + F(R, k)) mod a        R ← (R + F(L, k')) mod b
#
# Each line is invertible, so the whole is a bijection of [0, a·b); an image of n or above is mapped again until it is
# below n ("cycle walking"), which makes it a bijection of [0, n).
#
# Nothing is stored and no position depends on another: position 9,900,000 of 10,000,000 costs as much as position 0,
# any rank can compute its own positions, and a run can resume anywhere.
#
# Source: Black and Rogaway 2002, Ciphers with arbitrary finite domains, https://doi.org/10.1007/3-540-45760-7_9
# (generalized Feistel and cycle walking); F is `mix`.

ROUNDS = 6  # of two lines each; three give a pseudorandom permutation when F is one, the rest is for tiny n
_BLOCK = 8192  # elements whose intermediate values stay in the processor's cache


def order(
    seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int, shuffle: bool = True
) -> NDArray[np.int64]:
    """The numbers of the samples at `positions` of an epoch.

    Args:
        seed: Of the run; another seed gives an unrelated order.
        epoch: From 0 up; each has an unrelated order.
        positions: (n,) integers in [0, num_samples), in any order, repeated or not.
        num_samples: Size of the data set.
        shuffle: False gives `positions` back: each epoch in the order of the data set.

    Returns:
        (n,) sample numbers. Time and memory are those of n elements, whatever num_samples is.
    """
    return permute(positions, num_samples, key_of("order", seed, epoch)) if shuffle else positions


def orders(seeds: Sequence[int], epoch: int, num_samples: int) -> NDArray[np.int64]:
    """`order` of a whole epoch of several runs at once, (seeds, num_samples).

    F takes at most ⌈√n⌉ + 1 values in a round, so it is tabulated and the rounds are look-ups.
    """
    sides = _sides(num_samples)
    keys = _round_keys(np.array([key_of("order", seed, epoch) for seed in seeds])).T[..., None]
    tables = _tabulated(keys[::2], *reversed(sides)), _tabulated(keys[1::2], *sides)
    run = np.repeat(np.arange(len(seeds), dtype=np.uint32), num_samples)
    image = np.tile(np.arange(num_samples, dtype=np.uint32), len(seeds))
    for start in range(0, image.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        image[part] = _looked_up(image[part], run[part], tables, sides)
    outside = np.flatnonzero(image >= num_samples)
    while outside.size:
        again = image[outside] = _looked_up(image[outside], run[outside], tables, sides)
        outside = outside[again >= num_samples]
    return image.reshape(len(seeds), num_samples).astype(np.int64)


def _looked_up(
    x: NDArray[np.uint32],
    run: NDArray[np.uint32],
    tables: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    sides: tuple[int, int],
) -> NDArray[np.uint32]:
    """The Feistel network of each x, with F from the tables of its run."""
    a, b = map(np.uint32, sides)
    left, right = np.divmod(x, b)
    in_left, in_right = run * b, run * a  # where a run's tables begin
    for left_table, right_table in zip(*tables, strict=True):
        left += left_table.take(in_left + right)
        np.minimum(left, left - a, out=left)  # below 0 it wraps around and is the larger one
        right += right_table.take(in_right + left)
        np.minimum(right, right - b, out=right)
    return left * b + right


def _tabulated(keys: NDArray[np.uint64], values: int, modulus: int) -> NDArray[np.uint32]:
    """F of each value under each key, (rounds, runs · values)."""
    drawn = mix(np.arange(values, dtype=np.uint64) ^ keys) >> np.uint64(1)
    return (drawn % np.uint64(modulus)).astype(np.uint32).reshape(len(keys), -1)


def permute(x: NDArray[np.int64], size: int, key: np.uint64) -> NDArray[np.int64]:
    """The image of each x under the bijection of [0, size) that belongs to `key`."""
    a, b = _sides(size)
    keys = _round_keys(key)
    image = _feistel(x.astype(np.uint64), a, b, keys)
    while (outside := image >= size).any():
        image[outside] = _feistel(image[outside], a, b, keys)
    return image.astype(np.int64)


def _sides(size: int) -> tuple[int, int]:
    a = isqrt(size - 1) + 1
    return a, -(-size // a)


def _round_keys(key: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys of all lines, (2 · rounds,) behind the dimensions of `key`."""
    return mix(np.asarray(key)[..., None] + np.arange(1, 2 * ROUNDS + 1, dtype=np.uint64) * GOLDEN)


def _feistel(x: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = np.divmod(x, np.uint64(b))
    for k, k_next in keys.reshape(-1, 2):
        # One bit less than 64, so that the sum does not wrap around before the remainder is taken.
        left = (left + (mix(right ^ k) >> np.uint64(1))) % np.uint64(a)
        right = (right + (mix(left ^ k_next) >> np.uint64(1))) % np.uint64(b)
    return left * np.uint64(b) + right
