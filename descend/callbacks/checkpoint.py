"""Saves checkpoints of a run at intervals, and keeps the newest and the best of them."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_integer, check_number, collect, shown
from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, StorageError
from descend.train import Callback, Mode
from descend.train.callback import OF_AN_AVERAGE, Beginning, Monitored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["LAST", "Checkpoint"]

_MODES = tuple(mode.value for mode in Mode)
_COUNTS = ("every_steps", "every_epochs", "keep")
LAST = "sgd.last.shared.checkpoint"  # names the newest folder beside it


@dataclass
class Checkpoint(Callback):
    """Writes `run_dir/checkpoints/step-N/` at the intervals that are set; the end of a run is always saved.

    With `keep`, only the newest so many of those that this rule has written stay, restarts included, and the best one.
    An older one goes only after a newer one is written and verified; one with weights that are not finite counts as
    none; what the run did not write is never touched. With `checkpoint_dir` the same folder is also copied to where
    LBANN's scripts look for it: CHECKPOINT_DIR/trainerN/sgd.shared.HOOK.epoch.E.step.S/, HOOK being batch_end or
    epoch_end, and the file CHECKPOINT_DIR/trainerN/sgd.last.shared.checkpoint names the newest. Such copies are never
    removed.

    Runs:  after_setup, before_run, after_step, after_evaluation, after_epoch.
    Reads: weights and state. Changes nothing, but for `restart_dir`.
    Costs: one copy of weights and optimizer state to the disk each time; with `asynchronous`, one in memory.

    Args:
        every_steps: Save after every so many updates; 0 does not.
        every_epochs: Save after every so many passes; 0 does not.
        every_seconds: Save at the first step after so many seconds; 0 does not.
        keep: Keep so many of the newest; 0 keeps all.
        keep_best: A recorded value, such as "validation/objective": save after each pass whose value is the best so
            far, and keep the best one beside the newest. NaN is never best.
        best: "lowest" or "highest"; for an objective it need not be said.
        asynchronous: Write while training continues. The checkpoints and the run are the same bytes. The checkpoint
            before is waited for, so one more copy of weights and state is held in memory, not several.
        checkpoint_dir: Copy each checkpoint there, too.
        restart_dir: A new run begins with the newest checkpoint that was copied there, or from the start without
            one. If it is not set, checkpoint_dir counts, as in LBANN.

    Raises:
        ConfigurationError: no interval is set, a number is negative, keep_best has no direction; at the start, the
            run has no directory.

    Source: LBANN's CallbackCheckpoint, whose checkpoint_steps, checkpoint_epochs and checkpoint_secs these intervals
        are in a text. Its per-rank and distributed checkpoints are for other storage, and are refused.
    """

    message: ClassVar[str] = "Callback.CallbackCheckpoint"
    where: ClassVar[str | None] = None

    every_steps: int = 0
    every_epochs: int = 0
    every_seconds: float = 0.0
    keep: int = 0
    keep_best: str = ""
    best: str = ""
    asynchronous: bool = False
    checkpoint_dir: str = ""
    restart_dir: str = ""
    _run: RunView | None = field(default=None, init=False, repr=False, compare=False)
    _last: float = field(default=0.0, init=False, repr=False, compare=False)
    _score: float | None = field(default=None, init=False, repr=False, compare=False)
    _best_score: float | None = field(default=None, init=False, repr=False, compare=False)

    remembers: ClassVar[tuple[str, ...]] = ("_best_score",)
    saves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        problems = collect(
            *(check_integer(f"Checkpoint: {name}", getattr(self, name), 0) for name in _COUNTS),
            check_number("Checkpoint: every_seconds", self.every_seconds, at_least=0),
        )
        if not problems and not any(
            (self.every_steps, self.every_epochs, self.every_seconds, self.keep_best, self.restart_dir)
        ):
            remedy = "Checkpoint: set every_steps, every_epochs, every_seconds or keep_best"
            if refused(Deviation.CHECKPOINT_WITHOUT_INTERVAL, remedy):
                problems.append(f"{remedy}; without one it would never save")
        if self.keep_best.endswith("/objective"):
            self.best = self.best or "lowest"
        problems += _problems_of_best(self.keep_best, self.best)
        if problems:
            raise ConfigurationError(problems)

    @property
    def monitored(self) -> Monitored | None:
        """See `Callback.monitored`."""
        return Monitored(self.keep_best, "min" if self.best == "lowest" else "max") if self.keep_best else None

    @property
    def beginning(self) -> Beginning | None:
        """See `Callback.beginning`; the end of a run is saved in any case."""
        if (
            self.every_seconds
            or self.keep_best
            or self.restart_dir
            or bool(self.every_steps) == bool(self.every_epochs)
        ):
            return None
        if self.every_steps:
            return Beginning(f"every_steps={self.every_steps}", "updates", self.every_steps)
        return Beginning(f"every_epochs={self.every_epochs}", "epochs", self.every_epochs)

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        if unknown := [name for name in ("keep", "keep_best", "asynchronous") if getattr(self, name)]:
            raise ConfigurationError(
                f"Checkpoint: LBANN's format has no field for {', '.join(unknown)}; remove it to save a text"
            )
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
        in_parts = [name for name in ("per_rank_dir", "ckpt_dist_epochs", "ckpt_dist_steps") if fields.get(name)]
        problem = f"Checkpoint: {', '.join(in_parts)} asks for a checkpoint in parts, one for each rank"
        if in_parts and refused(Deviation.DISTRIBUTED_CHECKPOINT, problem):
            raise ConfigurationError(
                f"{problem}; use checkpoint_dir, checkpoint_epochs and checkpoint_steps, which save all of it once"
            )
        return cls(
            every_steps=fields.get("checkpoint_steps", 0) or fields.get("ckpt_dist_steps", 0),
            every_epochs=fields.get("checkpoint_epochs", 0) or fields.get("ckpt_dist_epochs", 0),
            every_seconds=fields.get("checkpoint_secs", 0.0),
            checkpoint_dir=fields.get("checkpoint_dir", ""),
            restart_dir=fields.get("restart_dir", ""),
        )

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self._score = self._best_score = None
        if not run.control.files.are_kept:
            raise ConfigurationError(
                "Checkpoint: this run keeps no files, so nothing could be saved; give it a directory with run_dir="
            )

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._run, self._last = run, run.control.collectives.now()
        folder = self.restart_dir or self.checkpoint_dir
        last = Path(folder) / run.control.files.trainer / LAST
        if folder and run.step == 0 and last.is_file():
            run.control.files.restore(last.parent / last.read_text(encoding="utf-8").strip())

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        by_steps = self.every_steps and step.step % self.every_steps == 0
        by_seconds = self.every_seconds and step.run.control.collectives.now() - self._last >= self.every_seconds
        if by_steps or by_seconds:
            self._save("batch_end", step.epoch, step.step)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._score = evaluation.values.get(self._name_in(evaluation.mode), self._score)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._score = epoch.values.get(self._name_in(Mode.TRAIN), self._score)
        due = self.every_epochs and (epoch.epoch + 1) % self.every_epochs == 0
        if self._is_best() or due:
            self._save("epoch_end", epoch.finished, epoch.step, self._score)
        self._score = None

    def _name_in(self, mode: Mode) -> str:
        """The metric of `keep_best`, if it is one of this mode; else a name that no metric has."""
        wanted, _, name = self.keep_best.partition("/")
        return name if wanted == mode.value else ""

    def _is_best(self) -> bool:
        """Record the value of an epoch; whether it is the best so far."""
        score, before = self._score, self._best_score
        if score is None or math.isnan(score):
            return False
        better = before is None or (score < before if self.best == "lowest" else score > before)
        self._best_score = score if better else before
        return better

    def _save(self, hook: str, epoch: int, step: int, score: float | None = None) -> None:
        from descend.runtime import SaveRequest  # torch comes in here, not when a description is read

        if self._run is None:
            return
        name, trainer = f"sgd.shared.{hook}.epoch.{epoch}.step.{step}", self._run.control.files.trainer
        wish = SaveRequest(
            who=_name_of_rule(self),
            keep=self.keep,
            score=score,
            best="highest" if self.best == "highest" else "lowest",
            asynchronous=self.asynchronous,
            then=lambda written: _copy(written, self.checkpoint_dir, trainer, name),
        )
        self._run.save(wish)
        self._last = self._run.control.collectives.now()


def _name_of_rule(rule: Checkpoint) -> str:
    """A name that is the same after a restart with other numbers."""
    intervals = [name for name in ("every_steps", "every_epochs", "every_seconds", "keep_best") if getattr(rule, name)]
    return "Checkpoint " + " ".join(intervals)


def _problems_of_best(keep_best: str, best: str) -> list[str]:
    if not keep_best:
        return ["Checkpoint: best= says which value is best of keep_best=, which is not set"] if best else []
    if keep_best.count("/") != 1 or keep_best.split("/")[0] not in _MODES:
        return [
            f"Checkpoint: keep_best must be MODE/NAME such as 'validation/objective', got {shown(keep_best)}, "
            f"with one of the modes {', '.join(_MODES)}{OF_AN_AVERAGE if keep_best.count('/') > 1 else ''}"
        ]
    if best not in ("lowest", "highest"):
        return [f"Checkpoint: best must be 'lowest' or 'highest' for {keep_best}, got {shown(best)}"]
    return []


def _copy(written: Path, checkpoint_dir: str, trainer: str, name: str) -> None:
    """Copy a checkpoint to a temporary name, rename it, and only then mark it as the newest."""
    if not checkpoint_dir:
        return
    folder = Path(checkpoint_dir) / trainer
    beside = folder / f".{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(written, beside)
        if (rows := written.parents[1] / "metrics.jsonl").is_file():  # the history up to the checkpoint is in it
            shutil.copyfile(rows, beside / rows.name)
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        beside.rename(folder / name)
        newest = folder / f".{LAST}.part"
        newest.write_text(f"{name}\n", encoding="utf-8")
        newest.replace(folder / LAST)
    except OSError as error:
        raise StorageError(f"cannot copy a checkpoint to {folder}: {error.strerror or error}") from error
