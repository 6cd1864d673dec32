"""Images and random numbers for the tests of transforms."""

import numpy as np

from descend.data.order import Draws, key_of


def images(n=6, channels=3, height=7, width=5, dtype=np.float32):
    return np.random.default_rng(0).integers(0, 256, (n, channels, height, width)).astype(dtype)


def draws(n=6, key="test"):
    return Draws(key_of(key), np.arange(n))
