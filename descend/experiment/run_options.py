"""Where a run is kept, and which trainer and which ranks carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from descend.runtime import Communicator
    from descend.train.store import RunStore

__all__ = ["RunOptions", "TrainerContext"]


@dataclass(frozen=True)
class TrainerContext:
    """One of several trainers.

    Attributes:
        number: Its number.
        communicator: This process among the ranks of the trainer.
        store: Where it keeps rows and checkpoints.
    """

    number: int
    communicator: Communicator
    store: RunStore


@dataclass(frozen=True)
class RunOptions:
    """Where a run is kept and who carries it out, as `descend.fit` and `descend.run` take it.

    Attributes:
        run_dir: A new or empty directory; with `resume`, that of the run to continue; None makes a dated one.
        keep_files: False keeps no files at all.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin.
        reset_optimizer: With `resume`, continue the checkpoint with an optimizer without state.
        weights_only: With `resume`, start over with those weights of the checkpoint that fit by name and shape.
        trainers: How many train the model; None for one a block of ranks.
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.
        deterministic: Let torch take algorithms that give the same bits each time while the run lasts, and refuse an
            operation without one. On a GPU only that makes a repeated or continued run the same to the bit.
        working_dir: Where relative names of callbacks lie; None for the run directory.
        check_ranks: With several ranks that hold copies of the weights, compare these now and then and at the end, at a
            cost below a thousandth; a rank whose weights have drifted away ends the run.
    """

    run_dir: str | os.PathLike[str] | None = None
    keep_files: bool = True
    resume: bool = False
    reset_optimizer: bool = False
    weights_only: bool = False
    trainers: int | None = None
    procs_per_trainer: int | None = None
    deterministic: bool = False
    working_dir: Path | None = None
    check_ranks: bool = True

    @property
    def continued(self) -> str | os.PathLike[str] | None:
        """The directory of the run that is continued; None for a new run."""
        return self.run_dir if self.resume else None
