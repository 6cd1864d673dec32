"""Brings a run to where a checkpoint stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descend.callbacks.console import say
from descend.errors import StorageError
from descend.experiment.checkpoint import as_storage_error, check_weights, load, restore, restore_weights
from descend.experiment.run_store import DirectoryStore
from descend.experiment.settings_diff import changed_options, compare, refuse
from descend.runtime import newest_checkpoint
from descend.train import ExecutionContext, Mode
from descend.train.population.exchange import STATE

if TYPE_CHECKING:
    import os

    from descend.experiment.checkpoint import LoadedCheckpoint
    from descend.experiment.settings_diff import SettingChange
    from descend.train.run import Run

__all__ = ["diff_settings", "resume", "start_over"]


def start_over(run: Run, checkpoint: Path) -> None:
    """Begin a run with those weights of a checkpoint that fit by name and shape.

    Raises:
        StorageError: the checkpoint is damaged, or none fits.
    """
    restore_weights(load(checkpoint, run), run)
    run.strategy.synchronize("the weights of a checkpoint")
    run.store.begin(run, checkpoint)


def resume(run: Run, checkpoint: Path) -> None:
    """Bring the run to where a checkpoint stands, and show what is different now."""
    saved, store = load(checkpoint, run), run.store
    with as_storage_error(checkpoint):
        form = saved.parts.get("algorithm", {}).get(STATE, {}).get("form")
        if form is not None and hasattr(run.task, "take_form"):
            run.take_form(form)  # the weights that were saved are those of this graph
    check_weights(saved, run)
    times, row_seconds = {}, {}
    if isinstance(store, DirectoryStore):
        store.require_facts()  # before anything is changed
    changes = _shown(saved, run)
    if isinstance(store, DirectoryStore):
        times, row_seconds = store.times(checkpoint)
    restore(saved, run, changed_options(changes), run.config.reset_optimizer, times, row_seconds)
    if run.state.began is None:  # the run had come to its end; limits count from its beginning, not from there
        run.state.began = ExecutionContext(Mode.TRAIN)
    store.rewrite(run)
    store.note_restart(run, [str(change) for change in changes])


def _shown(saved: LoadedCheckpoint, run: Run) -> list[SettingChange]:
    """What is different between a checkpoint and the run that is to continue it, printed.

    Raises:
        ConfigurationError: something of it cannot be.
    """
    changes = compare(saved.settings, run.config.settings, run.config.reset_optimizer)
    for change in changes:
        say(str(change))
    refuse(changes, saved.checkpoint)
    return changes


def diff_settings(run: Run, run_dir: str | os.PathLike[str]) -> None:
    """Say what is different between the newest checkpoint of a run and what would continue it; start nothing.

    Raises:
        ConfigurationError: something of it cannot be.
        StorageError: there is no good checkpoint.
    """
    checkpoint = newest_checkpoint(Path(run_dir) / "checkpoints")
    if checkpoint is None:
        raise StorageError(f"there is no checkpoint in {run_dir}, so there is nothing to compare with")
    if not _shown(load(checkpoint, run), run):
        say(f"nothing has changed since {checkpoint}")
