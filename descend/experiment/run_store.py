"""The store of a run that keeps rows and checkpoints in a run directory.

Of several ranks, rank zero owns the directory; what callbacks write on the others goes to a scratch folder.
"""

from __future__ import annotations

import atexit
import platform
import shutil
import sys
import tempfile
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks.console import listening, say
from descend.errors import DescendError, StorageError, exit_code
from descend.experiment.best import monitored_metric
from descend.experiment.checkpoint import capture
from descend.experiment.ranks import NoFiles
from descend.lazy import instance_check, registered
from descend.machine import __version__
from descend.runtime import CheckpointManager, Communicator, RunDirectory, SaveRequest, require_storable
from descend.runtime.directory_lock import HeldFolder
from descend.runtime.seeds import arithmetic_settings
from descend.train.module_state import tensors_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Sequence

    from typing_extensions import TypeIs

    from descend.graph import Plan
    from descend.train.run import Run

__all__ = ["DirectoryStore", "facts_of", "logging_to"]

_is_plan: Callable[[object], TypeIs[Plan]] = instance_check("descend.graph.plan", "Plan")


class DirectoryStore(NoFiles):
    """Keeps a run directory.

    Args:
        run_dir: Returns a new or empty directory, or that of the run to continue; None makes a dated one. It is called
            when the store is opened.
        working_dir: Where relative names of callbacks lie; None for the run directory.
        trainer: Number of the trainer in names of LBANN's files.
    """

    def __init__(
        self,
        run_dir: Callable[[], str | os.PathLike[str] | None],
        working_dir: Path | None = None,
        trainer: int = 0,
    ) -> None:
        self._run_dir, self._communicator = run_dir, Communicator()
        self.working_dir, self.trainer = working_dir, trainer
        self._files: RunDirectory | None = None  # on rank zero, while it is open
        self.checkpoints: CheckpointManager | None = None  # likewise
        self._held: HeldFolder | None = None  # while it is open

    @contextmanager
    def opened(self, run: Run) -> Generator[None]:
        """See `RunStore.opened`."""
        self._communicator = run.communicator
        with ExitStack() as stack:

            def open_directory() -> str:
                self._files = RunDirectory(self._run_dir(), run.name, resume=run.config.resume)
                return str(self._files.path)

            self.directory = Path(self._communicator.on_rank_zero(open_directory))
            if self._files is not None:
                stack.callback(self._files.close)
                self._held = self._files.folder
                folder = self.directory / "checkpoints"
                manager = CheckpointManager(folder, say, self._files.require_ownership, self._held)
                self.checkpoints = stack.enter_context(manager)
                run.stop.watch(self._files.lost)
            else:
                self._held = HeldFolder(self.directory)
                stack.callback(self._held.close)
            stack.enter_context(super().opened(run))
            yield

    @contextmanager
    def logging(self) -> Generator[None]:
        """See `RunStore.logging`."""
        with logging_to(self._files):
            yield

    def check(self, run: Run) -> None:
        """See `RunStore.check`."""
        if self._files is not None:
            require_storable(tensors_of(run.task.module))

    def discard(self) -> None:
        """See `RunStore.discard`."""
        if self._files is not None:
            self._files.discard()

    def newest_checkpoint(self) -> Path | None:
        """See `RunStore.newest_checkpoint`."""
        checkpoints = self.checkpoints
        name = self._communicator.on_rank_zero(lambda: str(checkpoints.open() or "") if checkpoints else "")
        return Path(name) if name else None

    def times(self, checkpoint: Path) -> tuple[dict[str, float], dict[tuple[str, int, int], float]]:
        """The durations noted with a checkpoint, and the length of each epoch and evaluation that has a row.

        Raises:
            StorageError: `run.json` is missing or damaged.
        """
        files, checkpoints = self._files, self.checkpoints
        self._communicator.on_rank_zero(lambda: files.facts() and None if files else None)
        times = self._communicator.on_rank_zero(lambda: checkpoints.times(checkpoint) if checkpoints else {})
        rows = self._communicator.on_rank_zero(lambda: list(files.seconds_of_rows().items()) if files else [])
        return times, {(mode, epoch, step): seconds for (mode, epoch, step), seconds in rows}

    def begin(self, run: Run, checkpoint: Path | None) -> None:
        """See `RunStore.begin`."""
        if self._files is None or self.checkpoints is None:
            return
        if checkpoint is not None:
            aside = self._files.set_aside()
            say(f"starts over with the weights of {checkpoint.name}; that run is in {aside} now")
            self.checkpoints.open()
        try:
            for name, text in run.config.files.items():
                self._files.write_text(name, text)
            self._files.write_json("run.json", facts_of(run))
            self._files.replace_rows([])
        except StorageError:
            self._files.discard()
            raise
        self._files.log(f"descend {__version__}: {run.name} begins")

    def note_restart(self, run: Run, changes: Sequence[str]) -> None:
        """See `RunStore.note_restart`."""
        if self._files is None:
            return
        for name, text in run.config.files.items():
            self._files.keep_text(name, text)
        at = run.state.training
        self._files.note_restart(at.step, at.epoch, list(changes))

    @contextmanager
    def noting_end(self, run: Run) -> Generator[None]:
        """See `RunStore.noting_end`."""
        if self._files is None or self.checkpoints is None:
            yield
            return
        end: dict[str, Any] = {"exit_code": 0}
        try:
            yield
        except BaseException as error:
            problems = error.problems if isinstance(error, DescendError) else [f"{type(error).__name__}: {error}"]
            end = {"exit_code": exit_code(error), "error": list(problems)}
            self._files.log("\n".join(f"ended: {problem}" for problem in problems))
            raise
        finally:
            saves = {
                "failed_saves": self.checkpoints.failures,
                "save_seconds": self.checkpoints.longest_seconds,
            }
            self._files.note_end({"reason": run.state.end, **end, "step": run.state.step, **saves})
            plan = getattr(run.task.module, "plan", None)
            write_page = registered("write_after_run")
            if write_page is not None and self._files.is_ours():
                write_page(self._files, plan if _is_plan(plan) else None)

    # ---- rows and checkpoints

    def append(self, row: dict[str, Any]) -> None:
        """See `RunStore.append`."""
        if self._files is not None:
            self._files.append_row(row)

    def rewrite(self, run: Run) -> None:
        """See `RunStore.rewrite`."""
        if self._files is not None:
            self._files.replace_rows(run.state.history, run.state.step)

    def load(self, run: Run, checkpoint: Path) -> None:
        """See `RunStore.load`."""
        super().load(run, checkpoint)
        self.rewrite(run)

    def save(self, run: Run, request: SaveRequest | None = None, final: bool = False) -> Path | None:
        """See `RunStore.save`."""
        if self.directory is None:
            return None

        def wait_for_shards() -> None:  # those of an asynchronous save, perhaps of the same step, are read until then
            if self._files is not None and self.checkpoints is not None:
                self._files.require_ownership()
                self.checkpoints.wait()

        if run.strategy.is_sharded:
            self._communicator.on_rank_zero(wait_for_shards)
        from descend.runtime.sharded_save import stage_shards

        place = self.directory if self._held is None else self._held.place
        shown = self.directory / "checkpoints"
        snapshot = stage_shards(capture(run), run.communicator, place / "checkpoints", shown)

        def write() -> tuple[str, float]:
            if self._files is None or self.checkpoints is None:
                return "", 0.0
            self._files.require_ownership()
            self._files.flush_rows()
            path = self.checkpoints.save(snapshot, request or SaveRequest(), final)
            return str(path or ""), self.checkpoints.longest_seconds

        path, self.save_seconds = self._communicator.on_rank_zero(write)
        return Path(path) if path else None

    def require_ownership(self) -> None:
        """See `RunStore.require_ownership`."""
        files = self._files
        self._communicator.on_rank_zero(lambda: files.require_ownership() if files else None)

    def require_place(self) -> None:
        """See `RunStore.require_place`: of several ranks, rank zero throws away what it writes until all hear of it."""
        if self._files is None or self.scratch is not None:
            return
        if self._communicator.world_size == 1:
            self._files.require_ownership()
        elif not self._files.is_ours():
            self.scratch = Path(tempfile.mkdtemp(prefix="descend-"))
            atexit.register(shutil.rmtree, self.scratch, ignore_errors=True)

    def follow(self) -> Path | None:
        """See `RunStore.follow`."""
        files = self._files
        moved = self._communicator.on_rank_zero(lambda: str(files.follow() or "") if files else "")
        if not moved:
            return None
        if files is not None:
            self.scratch = None
        self.directory = Path(moved)
        return self.directory


@contextmanager
def logging_to(files: RunDirectory | None) -> Generator[None]:
    """Within this block what is printed, and every warning, goes into log.txt as well."""
    if files is None:
        yield
        return
    before = warnings.showwarning

    def show(message: Warning | str, *about: Any) -> None:
        files.log(f"warning: {message}")
        before(message, *about)

    with listening(files.log):
        warnings.showwarning = show
        try:
            yield
        finally:
            if warnings.showwarning is show:
                warnings.showwarning = before


def facts_of(run: Run) -> dict[str, Any]:
    """What is needed to repeat the run, beside its text."""
    return {
        "descend": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "arithmetic": arithmetic_settings(),
        "command": sys.argv,
        "random_seed": run.seed,
        "settings": dict(run.config.settings),
        "monitored": monitored_metric(run.callbacks.all, [{"mode": mode.value} for mode in run.data])._asdict(),
        "restarts": [],
        "end": None,
    }
