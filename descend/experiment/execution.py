"""Carries out the run that `fit` or `run` was asked for: of one trainer here, of several in `population.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from descend.errors import DAMAGED_FILE, ConfigurationError
from descend.experiment.ranks import NoFiles
from descend.experiment.runner import Result, RunOptions, TrainerContext, execute
from descend.files import bounded_text
from descend.launch import layout_trainers
from descend.runtime import seed_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from descend.launch import TrainerLayout
    from descend.runtime import Communicator
    from descend.train.run import Run
    from descend.train.store import RunStore

__all__ = ["assign_ranks", "execute_all", "stored_trainers", "trainer_seed"]


def trainer_seed(seed: int, number: int) -> int:
    """The seed of a trainer: the first one has that of the run, so that a single trainer is the run itself."""
    return seed_of(seed, "trainer", number) % 2**31 if number else seed


def stored_trainers(run_dir: str | os.PathLike[str] | None) -> int | None:
    """How many trainers the run in a directory has; None where that is not known."""
    path = None if run_dir is None else Path(run_dir) / "run.json"
    try:
        return None if path is None else json.loads(bounded_text(path)).get("trainers", 1)
    except DAMAGED_FILE:
        return None


def assign_ranks(
    world: Communicator, trainers: int | None, procs_per_trainer: int | None, continued: str | os.PathLike[str] | None
) -> TrainerLayout:
    """Share trainers out among all ranks.

    Args:
        world: This process among all ranks.
        trainers: How many; None for those of the run that is continued, or one a block.
        procs_per_trainer: Ranks of a block.
        continued: The directory of the run that is continued.

    Raises:
        ConfigurationError: the numbers do not fit together, or the run in the directory has other trainers.
    """
    known = world.on_rank_zero(lambda: stored_trainers(continued))
    several = known if known and known > 1 else None
    shares = layout_trainers(world.world_size, several if trainers is None else trainers, procs_per_trainer)
    if known not in (None, shares.trainers):
        raise ConfigurationError(
            f"the run in {continued} has {known} trainer{'s' * (known != 1)} and cannot be continued with "
            f"{shares.trainers}; nothing was changed. Continue it with trainers={known} (--trainers {known}), or begin "
            "in another directory"
        )
    return shares


def execute_all(
    make: Callable[[TrainerContext], Run], layout: TrainerLayout, world: Communicator, seed: int, options: RunOptions
) -> Result:
    """Carry out a run of one trainer or several.

    Args:
        make: Builds the run of one trainer; called for those of this process, in order.
        layout: Which ranks work for which trainers.
        world: This process among all ranks.
        seed: Of the whole.
        options: Where the run is kept.

    Returns:
        What came of the first trainer of this process; `trainers` has those of all of its trainers.

    Raises:
        As `descend.experiment.runner.execute`.
    """
    if layout.trainers == 1:
        return execute(make(TrainerContext(0, world, _store(options))))
    from descend.experiment.population import execute_population

    return execute_population(make, layout, world, seed, options)


def _store(options: RunOptions) -> RunStore:
    if not options.keep_files:
        return NoFiles()
    from descend.experiment.run_store import DirectoryStore

    return DirectoryStore(lambda: options.run_dir, options.working_dir)
