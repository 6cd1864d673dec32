"""The order of an epoch's samples, as a pure function of the position.

Sample number at position x of n: a Feistel network whose halves are the digits (L, R) of x = L·b + R, with
a = ⌈√n⌉ and b = ⌈n/a⌉, so that a·b exceeds n by less than a. For each round, with an own key k

    L ← (L + F(R, k)) mod a        R ← (R + F(L, k')) mod b

Each line can be undone, so the whole is a bijection of [0, a·b); what falls on n or above is sent through it again
until it falls below n ("cycle walking"), which makes it a bijection of [0, n).

Nothing is stored and no position depends on another: position 9,900,000 of 10,000,000 costs what position 0 costs, any
rank can ask for its own positions, and a run can continue anywhere.

Source: Black and Rogaway 2002, Ciphers with arbitrary finite domains, https://doi.org/10.1007/3-540-45760-7_9
(generalized Feistel and cycle walking); F is the finalizer of `draws`.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from descend.data.draws import GOLDEN, key_of, mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["order", "permute"]

ROUNDS = 6  # of two lines each; three give a pseudorandom permutation when F is one, the rest is for tiny n


def order(
    seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int, shuffle: bool = True
) -> NDArray[np.int64]:
    """The numbers of the samples that stand at `positions` of an epoch.

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


def permute(x: NDArray[np.int64], size: int, key: np.uint64) -> NDArray[np.int64]:
    """The image of each x under the bijection of [0, size) that belongs to `key`."""
    a = isqrt(size - 1) + 1
    b = -(-size // a)
    keys = mix(key + np.arange(1, 2 * ROUNDS + 1, dtype=np.uint64) * GOLDEN)
    image = _feistel(x.astype(np.uint64), a, b, keys)
    while (outside := image >= size).any():
        image[outside] = _feistel(image[outside], a, b, keys)
    return image.astype(np.int64)


def _feistel(x: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = np.divmod(x, np.uint64(b))
    for k, k_next in keys.reshape(-1, 2):
        # One bit less than 64, so that the sum does not wrap around before the remainder is taken.
        left = (left + (mix(right ^ k) >> np.uint64(1))) % np.uint64(a)
        right = (right + (mix(left ^ k_next) >> np.uint64(1))) % np.uint64(b)
    return left * np.uint64(b) + right
