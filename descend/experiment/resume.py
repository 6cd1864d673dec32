"""Brings a run to where a checkpoint stands, and says which of its settings are different now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.callbacks.console import say
from descend.errors import ConfigurationError, StorageError
from descend.experiment.checkpoint import as_storage_error, check_weights, load, restore, restore_weights
from descend.experiment.run_store import DirectoryStore
from descend.runtime import newest_checkpoint
from descend.train import ExecutionContext, Mode
from descend.train.population.exchange import STATE

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from descend.experiment.checkpoint import LoadedCheckpoint
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
        times, row_seconds = store.times(checkpoint)  # before anything is changed
    changes = _shown(saved, run)
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


# ---- differences between the settings of a checkpoint and of the run that resumes it: each one applies or is
# refused
#
# field: checkpoint -> now: action

OPTION = "optimizer."  # prefix of an option of the optimizer

_APPLY = {
    "batch_size": "applies; the position among the samples is kept",
    "micro_batch_size": "applies; the updates are the same",
    "stop": "applies, counted from the start of the run",
    "optimizer.lr": "applies",
    "optimizer.weight_decay": "applies",
    "clip_value": "applies",
    "clip_norm": "applies",
    "transforms": "applies",
    "clip_global_norm": "applies",
    "on_nonfinite": "applies",
    "precision": "applies",
    "loss": "applies",
    "algorithm": "applies",
    "metrics": "applies, to the rest of an unfinished epoch as well",
    "skip_bad": "applies",
    "validation samples": "applies",
    "test samples": "applies",
}
_REFUSE = {
    "samples": "refused: the rest of the epoch would have other samples; resume with the same data",
    "classes": "refused: outputs would mean other classes; say classes=[...] in the order of the checkpoint",
    "seed": "refused: the order of the samples would change within the epoch; keep the seed",
    "shuffle": "refused: the order of the samples would change within the epoch; keep it",
    "sampler": "refused: the order of the samples would change within the epoch; keep it",
    "optimizer": "refused: its state is of another optimizer; pass reset_optimizer=True (--reset-optimizer) to drop it",
}
_OPTION_REFUSED = (
    "refused: the state depends on it; pass reset_optimizer=True (--reset-optimizer) to start without state"
)


@dataclass(frozen=True)
class SettingChange:
    """One difference.

    Attributes:
        field: What differs.
        before: Its value in the checkpoint.
        now: Its value now.
        action: Whether it applies or is refused, and the remedy.
    """

    field: str
    before: Any
    now: Any
    action: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} -> {self.now}: {self.action}"

    @property
    def refused(self) -> bool:
        """Whether the run cannot be resumed with it."""
        return self.action.startswith("refused")


def compare(before: Mapping[str, Any], now: Mapping[str, Any], reset_optimizer: bool) -> list[SettingChange]:
    """All differences between the settings of a checkpoint and those of a run.

    Args:
        before: Plain values by field, as read from the checkpoint.
        now: The settings of this run.
        reset_optimizer: Whether the optimizer's state is dropped.
    """
    now = json.loads(json.dumps(dict(now)))  # tuples are lists in a checkpoint
    before = {"classes": now.get("classes"), **before}  # which checkpoints of earlier versions do not have
    fields = [field for field in {**before, **now} if before.get(field) != now.get(field)]
    if not reset_optimizer and "optimizer" in fields:  # the options of another optimizer differ anyway
        fields = [field for field in fields if not field.startswith(OPTION)]
    return [
        SettingChange(field, before.get(field), now.get(field), _action(field, reset_optimizer)) for field in fields
    ]


def _action(field: str, reset_optimizer: bool) -> str:
    if field.startswith("optimizer") and reset_optimizer:
        return "applies, with an empty state"
    if field in _APPLY:
        return _APPLY[field]
    return _REFUSE.get(field, _OPTION_REFUSED if field.startswith(OPTION) else "refused: keep it as it was")


def refuse(changes: Sequence[SettingChange], checkpoint: object) -> None:
    """Raise ConfigurationError if one of the differences is refused; nothing has been changed then."""
    if refused := [str(change) for change in changes if change.refused]:
        more = [f"and {len(refused) - 5} more"] if len(refused) > 5 else []
        what = f"{checkpoint} cannot be resumed with these settings; nothing was changed:"
        remedy = (
            "set them as they were, name another run directory, or pass weights_only=True (--weights-only) to start "
            "over with its weights"
        )
        raise ConfigurationError([what, *refused[:5], *more, remedy])


def changed_options(changes: Sequence[SettingChange]) -> tuple[str, ...]:
    """The options of the optimizer whose current value replaces the saved one."""
    return tuple(change.field.removeprefix(OPTION) for change in changes if change.field.startswith(OPTION))
