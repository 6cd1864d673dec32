"""Assigns ranks to trainers, where several trainers share the ranks: contiguous blocks of ranks, in order."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.arguments import check_integer, require
from descend.errors import ConfigurationError
from descend.launch.environment import detect

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["TrainerLayout", "as_trainer", "current_trainer", "layout_trainers"]

_MOST_TRAINERS = 1_000_000

_acting: ContextVar[tuple[int, int] | None] = ContextVar("trainer", default=None)


@dataclass(frozen=True)
class TrainerLayout:
    """The assignment of trainers to ranks.

    Attributes:
        trainers: Number of trainers.
        world_size: Number of ranks.
        procs_per_trainer: Ranks of a block; the trainers of a block share all of them.
    """

    trainers: int
    world_size: int
    procs_per_trainer: int

    @property
    def blocks(self) -> int:
        """Number of blocks of ranks."""
        return self.world_size // self.procs_per_trainer

    def block_of(self, trainer: int) -> int:
        """The block that a trainer belongs to."""
        return trainer // (self.trainers // self.blocks)

    def first_of(self, trainer: int) -> int:
        """The first rank of a trainer."""
        return self.block_of(trainer) * self.procs_per_trainer

    def of_rank(self, rank: int) -> range:
        """The trainers that a rank works for."""
        each = self.trainers // self.blocks
        block = rank // self.procs_per_trainer
        return range(block * each, (block + 1) * each)

    def ranks_of_block(self, block: int) -> range:
        """The ranks of a block."""
        return range(block * self.procs_per_trainer, (block + 1) * self.procs_per_trainer)


def layout_trainers(
    ranks: int,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> TrainerLayout:
    """Assign trainers to ranks.

    Args:
        ranks: Number of ranks.
        trainers: Number of trainers; None for one in each block of ranks.
        procs_per_trainer: Ranks of a block; None for DESCEND_PROCS_PER_TRAINER or LBANN_PROCS_PER_TRAINER, and without
            them all ranks divided by the trainers, or one where there are fewer ranks than trainers.
        environment: The environment variables.

    Raises:
        ConfigurationError: the numbers contradict each other.
    """
    require(
        check_integer("trainers", trainers, 1, _MOST_TRAINERS, also=(None,)),
        check_integer("procs_per_trainer", procs_per_trainer, 1, also=(None,)),
    )
    procs = procs_per_trainer or _from(environment)
    if procs is None:
        procs = max(ranks // trainers, 1) if trainers else ranks
    if ranks % procs:
        fitting = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        raise ConfigurationError(f"procs_per_trainer={procs} does not divide {ranks} ranks; {fitting} do")
    blocks = ranks // procs
    number = trainers or blocks
    if number % blocks:
        raise ConfigurationError(
            f"{number} trainers cannot be divided evenly among {blocks} blocks of {procs} ranks each"
        )
    return TrainerLayout(number, ranks, procs)


def _from(environment: Mapping[str, str]) -> int | None:
    for name in ("DESCEND_PROCS_PER_TRAINER", "LBANN_PROCS_PER_TRAINER"):
        text = environment.get(name, "")
        if text and (not text.isdecimal() or int(text) < 1):
            raise ConfigurationError(f"{name} must be an integer >= 1, got {text!r}")
        if text:
            return int(text)
    return None


@contextmanager
def as_trainer(trainer: int, trainers: int) -> Generator[None]:
    """Within this block the process works for one of its trainers."""
    token = _acting.set((trainer, trainers))
    try:
        yield
    finally:
        _acting.reset(token)


def current_trainer() -> tuple[int, int]:
    """The current trainer of this process, and the number of trainers; outside of a run from the environment."""
    if (now := _acting.get()) is not None:
        return now
    where = detect()
    shares = layout_trainers(where.world_size)
    return shares.of_rank(where.rank)[0], shares.trainers
