"""Random numbers by name: every consumer has a stream of its own, whatever the others draw."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "seed_of"]


def seed_of(seed: int, *names: str | int) -> int:
    """A 63-bit seed that is a function of the run's seed and the consumer's name, such as ("weights", "conv1_kernel").

    Adding, removing or reordering other consumers does not change it. SHA-256 keeps the streams of similar names
    unrelated.
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator at the start of the stream of `names`."""
    return torch.Generator().manual_seed(seed_of(seed, *names))
