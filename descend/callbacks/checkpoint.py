"""Saves all that a run depends on, every so often, and keeps the newest few."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.train import Callback

if TYPE_CHECKING:
    from pathlib import Path

    from descend.train import EpochView, RunView, StepView

__all__ = ["Checkpoint"]


@dataclass
class Checkpoint(Callback):
    """Writes `run_dir/checkpoints/step-N/` at the intervals that are set; the end of a run is always saved.

    Runs:  before_run, after_step, after_epoch.
    Reads: weights and state. Changes nothing.
    Costs: one copy of weights and optimizer state to the disk each time.

    Args:
        every_steps: Save after every so many updates; 0 does not.
        every_epochs: Save after every so many passes; 0 does not.
        every_seconds: Save at the first step after so many seconds; 0 does not.
        keep: Keep so many of the checkpoints that this object wrote; 0 keeps all. Others are never removed, and an
            older one only after the newer one is complete.

    Raises:
        ConfigurationError: no interval is set, or a number is negative.
    """

    every_steps: int = 0
    every_epochs: int = 0
    every_seconds: float = 0.0
    keep: int = 0
    _run: RunView | None = field(default=None, init=False, repr=False, compare=False)
    _written: list[Path] = field(default_factory=list["Path"], init=False, repr=False, compare=False)
    _last: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("every_steps", "every_epochs", "every_seconds", "keep")}
        problems = [
            f"Checkpoint: {name} must be at least 0 and is {value!r}" for name, value in given.items() if value < 0
        ]
        if not any((self.every_steps, self.every_epochs, self.every_seconds)):
            problems.append(
                "Checkpoint: set every_steps, every_epochs or every_seconds; without one it would never save"
            )
        if problems:
            raise ConfigurationError(problems)

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._run, self._last = run, time.monotonic()

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        by_steps = self.every_steps and step.step % self.every_steps == 0
        by_seconds = self.every_seconds and time.monotonic() - self._last >= self.every_seconds
        if by_steps or by_seconds:
            self._save()

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self.every_epochs and (epoch.epoch + 1) % self.every_epochs == 0:
            self._save()

    def _save(self) -> None:
        written = self._run.save() if self._run else None
        self._last = time.monotonic()
        if written is None:
            return
        self._written = [*(path for path in self._written if path != written), written]
        while self.keep and len(self._written) > self.keep:
            shutil.rmtree(self._written.pop(0), ignore_errors=True)
