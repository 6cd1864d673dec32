"""The store of a run that keeps no files."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from descend.experiment.ranks import scratch_directory
from descend.train.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from descend.train.run import Run

__all__ = ["NoFiles"]


class NoFiles(RunStore):
    """Keeps nothing, and restores runs from checkpoints that others wrote."""

    @contextmanager
    def opened(self, run: Run) -> Generator[None]:
        """See `RunStore.opened`."""
        with ExitStack() as stack:
            if not run.communicator.is_rank_zero:
                self.scratch = stack.enter_context(scratch_directory())
            yield

    def load(self, run: Run, checkpoint: Path) -> None:
        """See `RunStore.load`."""
        from descend.experiment.checkpoint import load, restore

        restore(load(checkpoint, run), run)
