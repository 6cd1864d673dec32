"""Saves all that a run depends on, every so often, and keeps the newest few."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError, StorageError
from descend.train import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train import EpochView, RunView, StepView

__all__ = ["Checkpoint"]

_LAST = "sgd.last.shared.checkpoint"  # names the newest folder beside it


@dataclass
class Checkpoint(Callback):
    """Writes `run_dir/checkpoints/step-N/` at the intervals that are set; the end of a run is always saved.

    With `checkpoint_dir` the same folder is also copied to where LBANN's scripts look for it:
    CHECKPOINT_DIR/trainer0/sgd.shared.HOOK.epoch.E.step.S/, HOOK being batch_end or epoch_end, and the file
    CHECKPOINT_DIR/trainer0/sgd.last.shared.checkpoint names the newest. Such copies are never removed.

    Runs:  before_run, after_step, after_epoch.
    Reads: weights and state. Changes nothing, but for `restart_dir`.
    Costs: one copy of weights and optimizer state to the disk each time.

    Args:
        every_steps: Save after every so many updates; 0 does not.
        every_epochs: Save after every so many passes; 0 does not.
        every_seconds: Save at the first step after so many seconds; 0 does not.
        keep: Keep so many of the checkpoints that this object wrote; 0 keeps all. Others are never removed, and an
            older one only after the newer one is complete.
        checkpoint_dir: Copy each checkpoint there, too.
        restart_dir: A new run begins with the newest checkpoint that was copied there; without one, anew. If it is not
            set, checkpoint_dir counts, as in LBANN.

    Raises:
        ConfigurationError: nothing is to be done, or a number is negative.

    Source: LBANN's CallbackCheckpoint, whose checkpoint_steps, checkpoint_epochs and checkpoint_secs these intervals
        are in a text. Its per-rank and distributed checkpoints are for other storage, and are refused.
    """

    message: ClassVar[str] = "Callback.CallbackCheckpoint"
    where: ClassVar[str | None] = None

    every_steps: int = 0
    every_epochs: int = 0
    every_seconds: float = 0.0
    keep: int = 0
    checkpoint_dir: str = ""
    restart_dir: str = ""
    _run: RunView | None = field(default=None, init=False, repr=False, compare=False)
    _written: list[Path] = field(default_factory=list["Path"], init=False, repr=False, compare=False)
    _last: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("every_steps", "every_epochs", "every_seconds", "keep")}
        problems = [
            f"Checkpoint: {name} must be at least 0 and is {value!r}" for name, value in given.items() if value < 0
        ]
        if not any((self.every_steps, self.every_epochs, self.every_seconds, self.restart_dir)):
            problems.append(
                "Checkpoint: set every_steps, every_epochs or every_seconds; without one it would never save"
            )
        if problems:
            raise ConfigurationError(problems)

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        if self.keep:
            raise ConfigurationError("Checkpoint: keep has no place in LBANN's format; leave it out to save a text")
        return {
            "checkpoint_dir": self.checkpoint_dir,
            "restart_dir": self.restart_dir,
            "checkpoint_epochs": self.every_epochs,
            "checkpoint_steps": self.every_steps,
            "checkpoint_secs": self.every_seconds,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Checkpoint:
        """A checkpoint callback from the fields of a text."""
        refused = [name for name in ("per_rank_dir", "ckpt_dist_epochs", "ckpt_dist_steps") if fields.get(name)]
        if refused:
            raise ConfigurationError(
                f"Checkpoint: {', '.join(refused)} asks for a checkpoint in parts, one for each rank; use "
                "checkpoint_dir, checkpoint_epochs and checkpoint_steps, which save all of it once"
            )
        return cls(
            every_steps=fields.get("checkpoint_steps", 0),
            every_epochs=fields.get("checkpoint_epochs", 0),
            every_seconds=fields.get("checkpoint_secs", 0.0),
            checkpoint_dir=fields.get("checkpoint_dir", ""),
            restart_dir=fields.get("restart_dir", ""),
        )

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._run, self._last, self._written = run, time.monotonic(), []
        folder = self.restart_dir or self.checkpoint_dir
        last = Path(folder) / "trainer0" / _LAST
        if folder and run.step == 0 and last.is_file():
            run.control.restore(last.parent / last.read_text().strip())

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        by_steps = self.every_steps and step.step % self.every_steps == 0
        by_seconds = self.every_seconds and time.monotonic() - self._last >= self.every_seconds
        if by_steps or by_seconds:
            self._save("batch_end", step.epoch, step.step)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self.every_epochs and (epoch.epoch + 1) % self.every_epochs == 0:
            self._save("epoch_end", epoch.finished, epoch.step)

    def _save(self, hook: str, epoch: int, step: int) -> None:
        written = self._run.save() if self._run else None
        self._last = time.monotonic()
        if written is None:
            return
        if self.checkpoint_dir:
            self._copy(written, f"sgd.shared.{hook}.epoch.{epoch}.step.{step}")
        self._written = [*(path for path in self._written if path != written), written]
        while self.keep and len(self._written) > self.keep:
            shutil.rmtree(self._written.pop(0), ignore_errors=True)

    def _copy(self, written: Path, name: str) -> None:
        """Copy a checkpoint beside its final name, put it there, and only then call it the newest."""
        folder = Path(self.checkpoint_dir) / "trainer0"
        beside = folder / f".{name}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(written, beside)
            if (folder / name).exists():
                shutil.rmtree(folder / name)
            beside.rename(folder / name)
            newest = folder / f".{_LAST}.part"
            newest.write_text(f"{name}\n")
            newest.replace(folder / _LAST)
        except OSError as error:
            raise StorageError(f"cannot copy a checkpoint to {folder}: {error.strerror or error}") from error
