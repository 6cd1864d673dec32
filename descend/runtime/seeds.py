"""Random numbers by name: every consumer has a stream of its own, whatever the others draw."""

from __future__ import annotations

import hashlib
from functools import cache

import torch

__all__ = ["generator", "seed_evaluation", "seed_of", "seed_step"]

_GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: the seeds of near steps are far apart


def seed_of(seed: int, *names: str | int) -> int:
    """A 63-bit seed that is a function of the run's seed and the consumer's name, such as ("weights", "conv1_kernel").

    Adding, removing or reordering other consumers does not change it. SHA-256 keeps the streams of similar names
    unrelated.
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@cache
def _steps_of(seed: int) -> int:
    return seed_of(seed, "step")


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator at the start of the stream of `names`."""
    return torch.Generator().manual_seed(seed_of(seed, *names))


def seed_step(seed: int, step: int, position: int = 0) -> None:
    """Put torch's global generators at the start of the stream of one training step.

    What a module draws in a step, a dropout mask for example, is then a function of (seed, step, position): a run that
    is continued draws the same numbers and no generator has to be saved. Callers keep the user's own state with
    `torch.random.fork_rng`.

    Args:
        seed: Of the run.
        step: Updates before it.
        position: Where the samples of this rank begin in the mini-batch, so that no two ranks draw the same.
    """
    begin = seed_of(seed, "step", position) if position else _steps_of(seed)
    _begin((begin + step * _GOLDEN) % 2**63)  # a hash for each step would be felt by a small net


def seed_evaluation(seed: int, mode: str, step: int, batch: int, position: int = 0) -> None:
    """The same for one mini-batch of an evaluation that is made after `step` updates; see `seed_step`."""
    _begin(seed_of(seed, "evaluation", mode, step, batch, *[position] * (position > 0)))


def _begin(number: int) -> None:
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes 100 µs, which a small net would feel
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
