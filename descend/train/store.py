"""Where a run leaves its rows, checkpoints and files; `RunStore` itself keeps nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from descend.runtime import SaveRequest
    from descend.train.run import Run

__all__ = ["RunStore"]


class RunStore:
    """The store of a run that leaves no files.

    Attributes:
        directory: The run directory, on all ranks; None where no files are kept.
        scratch: Where files of callbacks go on a rank that leaves none; thrown away at the end.
        working_dir: Where relative names of callbacks and external metrics lie; None for the run directory.
        trainer: Number of the trainer in names of LBANN's files.
        save_seconds: The longest that a save has taken.
    """

    directory: Path | None = None
    scratch: Path | None = None
    working_dir: Path | None = None
    trainer: int = 0
    save_seconds: float = 0.0

    @property
    def place(self) -> Path | None:
        """Where relative names lie; None for the working directory of a run that keeps no files."""
        return self.working_dir or self.directory

    @contextmanager
    def opened(self, run: Run) -> Generator[None]:
        """Within this block the store takes rows and checkpoints."""
        yield

    @contextmanager
    def logging(self) -> Generator[None]:
        """Within this block what is printed, and every warning, goes into the log as well."""
        yield

    def check(self, run: Run) -> None:
        """Refuse a run whose state cannot be kept, before anything is written."""

    def require_ownership(self) -> None:
        """Raise DirectoryLost where the directory is no longer that of this run. All ranks call it."""

    def require_place(self) -> None:
        """Make sure that what callbacks write on this rank lands in no directory of others; called before they do."""

    def follow(self) -> Path | None:
        """Write to where the directory is now, if it was renamed under the run; None where that cannot be done."""
        return None

    def discard(self) -> None:
        """Remove a directory that was made for a run that cannot begin."""

    def begin(self, run: Run, checkpoint: Path | None) -> None:
        """Write what the directory of a new run begins with.

        Args:
            run: The run.
            checkpoint: Where its weights come from, if from a checkpoint.
        """

    def note_restart(self, run: Run, changes: Sequence[str]) -> None:
        """Note that a run continues from a checkpoint, and what is set differently now."""

    @contextmanager
    def noting_end(self, run: Run) -> Generator[None]:
        """Leave in the directory how the run ended, whatever it was."""
        yield

    def newest_checkpoint(self) -> Path | None:
        """The newest good checkpoint, on all ranks."""
        return None

    def load(self, run: Run, checkpoint: Path) -> None:
        """Bring a run to where a checkpoint stands."""
        raise NotImplementedError("a store that restores runs is made by `descend.experiment.run_store`")

    def append(self, row: dict[str, Any]) -> None:
        """Keep a row of the history as soon as it is known."""

    def rewrite(self, run: Run) -> None:
        """Rewrite the rows of the history, where some were taken back."""

    def save(self, run: Run, request: SaveRequest | None = None, final: bool = False) -> Path | None:
        """Write a checkpoint of this moment; returns its folder, None where nothing is kept. All ranks call it."""
        return None
