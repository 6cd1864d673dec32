"""Which rank this process is, as a script may ask at any time; nothing is started by asking, and torch is not imported.

A script that is started once for each rank reads `descend.distributed.rank()` before it prints or writes:

    if descend.distributed.rank() == 0:
        print(result.reason)
"""

from __future__ import annotations

import sys

from descend.launch import acting_trainer, place

__all__ = ["local_rank", "rank", "ranks", "trainer", "trainers"]


def rank() -> int:
    """Number of this process among its ranks, from 0."""
    group = _group()
    return place().rank if group is None else group[0]


def ranks() -> int:
    """How many ranks there are; 1 where nobody has started several."""
    group = _group()
    return place().ranks if group is None else group[1]


def local_rank() -> int:
    """Number of this process among the ranks of its host, from 0."""
    return place().local_rank


def trainer() -> int:
    """Number of the trainer that this process works for, from 0; 0 where there is one."""
    return acting_trainer()[0]


def trainers() -> int:
    """How many trainers there are; 1 where all ranks train one model."""
    return acting_trainer()[1]


def _group() -> tuple[int, int] | None:
    """Rank and ranks of the group that torch knows, where somebody has made one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
