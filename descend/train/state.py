"""The state of a run: plain data that changes while it trains, and nothing else does.

What a checkpoint keeps of it is `TrainState.state_dict`; times are kept apart, so that equal runs give equal
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from descend.runtime.rows import RowList, is_row
from descend.train.objective import Totals
from descend.train.progress import ExecutionContext, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = ["Bookmark", "EpochProgress", "TrainState"]


@dataclass
class EpochProgress:
    """An epoch that is under way.

    Attributes:
        samples_before: Samples seen before it.
        rows_before: Rows of the history before it.
        totals: Sums of objective and metrics, those of this rank.
        seconds: Its training time.
        skipped: Steps skipped because a gradient was not finite.
        complete: Whether its last mini-batch is done; its validation may still be to come.
        reported: Whether it was interrupted and has its rows all the same; they are written again when it continues.
        reporting: Whether its rows are being written; a run that continues here writes them again, with those of
            callbacks.
        step_seconds: Length of each step since the process began.
    """

    samples_before: int
    rows_before: int
    totals: Totals = field(default_factory=Totals)
    seconds: float = 0.0
    skipped: int = 0
    complete: bool = False
    reported: bool = False
    reporting: bool = False
    step_seconds: list[float] = field(default_factory=list[float])

    def state_dict(self, communicator: Communicator) -> dict[str, Any]:
        """The epoch of all ranks as tensors and plain values, without times. All ranks call it together."""
        return {
            "samples_before": self.samples_before,
            "rows_before": self.rows_before,
            "totals": self.totals.over(communicator).state(),
            "skipped": self.skipped,
            "complete": self.complete,
            "reported": self.reported,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], communicator: Communicator) -> EpochProgress:
        """The epoch that `state_dict` described; rank zero continues with the sums of all ranks."""
        totals = Totals(state["totals"] if communicator.is_rank_zero else None)
        found = cls(int(state["samples_before"]), int(state["rows_before"]), totals)
        found.skipped, found.complete, found.reported = (
            int(state["skipped"]),
            bool(state["complete"]),
            bool(state["reported"]),
        )
        return found


@dataclass
class TrainState:
    """Where a run stands.

    Attributes:
        communicator: This process among the ranks of the run.
        contexts: One execution context for each mode.
        began: Where the training algorithm under way was started; None between algorithms.
        epoch_progress: The epoch under way; None between epochs.
        seconds: Training time of whole steps over all restarts.
        step_began: When the step under way began; None outside an epoch.
        evaluation_seconds: The longest evaluation of each mode so far.
        history: All rows so far.
        values: The newest value of each quantity, by `mode/name`.
        skipped_in_a_row: Steps skipped since the last update.
        samples_kept: Samples since the last update whose gradient is kept for the next one; they draw random numbers as
            the first samples of one mini-batch.
        algorithm: What training algorithms keep, tensors and plain values, by their own keys.
        outputs: Outputs of layers that batched inference has gathered, by mode and layer.
        batches: The newest mini-batch of each mode.
        signal_divisor: What to divide gradients of layers' outputs by in `after_backward`, loss scale aside.
        rebatch: Whether a callback has changed the batch size, so that the rest of the epoch is batched again.
        end: Why the run ended, once it has.
    """

    resets_with_optimizer: ClassVar[bool] = False

    communicator: Communicator
    contexts: dict[Mode, ExecutionContext] = field(
        default_factory=lambda: {mode: ExecutionContext(mode) for mode in Mode}
    )
    began: ExecutionContext | None = None
    epoch_progress: EpochProgress | None = None
    seconds: float = 0.0
    step_began: float | None = None
    evaluation_seconds: dict[Mode, float] = field(default_factory=dict[Mode, float])
    history: RowList = field(default_factory=RowList)
    values: dict[str, float] = field(default_factory=dict[str, float])
    skipped_in_a_row: int = 0
    samples_kept: int = 0
    algorithm: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: dict[str, torch.Tensor] = field(default_factory=dict[str, "torch.Tensor"])
    batches: dict[Mode, Batch] = field(default_factory=dict[Mode, "Batch"])
    signal_divisor: torch.Tensor | float = 1.0
    rebatch: bool = False
    end: str = "ended by an error"

    @property
    def training(self) -> ExecutionContext:
        """The execution context of training: updates, epochs, position, samples."""
        return self.contexts[Mode.TRAIN]

    @property
    def step(self) -> int:
        """Updates applied so far."""
        return self.training.step

    @property
    def epochs_done(self) -> int:
        """Whole epochs, the one that is just complete included."""
        return self.training.epoch + (self.epoch_progress is not None and self.epoch_progress.complete)

    def advance(self, batch: Batch, totals: Totals) -> None:
        """Count a mini-batch that made an update."""
        self.training.step += 1
        self.skipped_in_a_row = self.samples_kept = 0
        self.pass_over(batch, totals)

    def pass_over(self, batch: Batch, totals: Totals) -> None:
        """Count the samples of a mini-batch, whether or not it made an update."""
        self.training.leave_out(batch.size)
        if self.epoch_progress is not None:
            self.epoch_progress.totals.join(totals)
            self.epoch_progress.complete = batch.last

    def note_skipped(self) -> None:
        """Count a step whose mini-batch is lost."""
        if self.epoch_progress is not None:
            self.epoch_progress.skipped += 1

    def seconds_of_step(self) -> float:
        """How long the step under way has taken so far."""
        return 0.0 if self.step_began is None else self.communicator.now() - self.step_began

    def fix_rows(self) -> None:
        """Rows so far are not written again when the epoch under way is continued from a checkpoint."""
        epoch = self.epoch_progress
        if epoch is not None and not epoch.reported and not epoch.reporting:
            epoch.rows_before = len(self.history)

    def times(self) -> dict[str, float]:
        """Training times, which are kept beside a checkpoint."""
        epoch = self.epoch_progress.seconds + self.seconds_of_step() if self.epoch_progress else 0.0
        return {"seconds": self.seconds + self.seconds_of_step(), "epoch": epoch}

    def load_times(self, times: Mapping[str, float], of_rows: Mapping[tuple[str, int, int], float]) -> None:
        """Take back training times.

        Args:
            times: What `times` gave.
            of_rows: Length of each epoch or evaluation that has a row, by mode, epoch and step.
        """
        self.seconds = times.get("seconds", 0.0)
        if self.epoch_progress:
            self.epoch_progress.seconds = times.get("epoch", 0.0)
        for row in self.history:
            if "samples" in row:  # rows that callbacks record have no length
                known = row.get("seconds", float("nan"))
                row["seconds"] = of_rows.get((row["mode"], row["epoch"], row["step"]), known)

    def state_dict(self) -> dict[str, Any]:
        """The state at this moment, between two steps. All ranks call it together."""
        epoch = self.epoch_progress
        rows = len(self.history)
        if epoch is not None and not epoch.reported:
            rows = min(rows, epoch.rows_before)
        return {
            "contexts": {mode.value: context.state() for mode, context in self.contexts.items()},
            "began": self.began and self.began.state(),
            "epoch_progress": epoch and epoch.state_dict(self.communicator),
            "values": dict(self.values),
            "history": self.history.position(rows),
            "skipped_in_a_row": self.skipped_in_a_row,
            "samples_kept": self.samples_kept,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; nothing changes where it is damaged.

        In the place of a position among rows, the history may be a list of rows.
        """
        began, epoch = state_dict["began"], state_dict["epoch_progress"]
        contexts = {
            Mode(name): ExecutionContext.from_state(context) for name, context in state_dict["contexts"].items()
        }
        if contexts.keys() != set(Mode):
            raise ValueError(f"contexts of {', '.join(contexts)}, expected those of {', '.join(Mode)}")
        began = None if began is None else ExecutionContext.from_state(began)
        epoch = None if epoch is None else EpochProgress.from_state_dict(epoch, self.communicator)
        history = state_dict["history"]
        if isinstance(history, dict) and (history := self.history.at(cast("dict[str, Any]", history))) is None:
            raise ValueError("the rows of the history that it refers to are not there")
        history = RowList(map(_checked_row, history))
        values = {str(name): float(value) for name, value in state_dict["values"].items()}
        skipped, kept = int(state_dict["skipped_in_a_row"]), int(state_dict["samples_kept"])
        if epoch is not None:
            epoch.rows_before = min(epoch.rows_before, len(history))  # where some could not be read
        self.contexts, self.began, self.epoch_progress = contexts, began, epoch
        self.history, self.values, self.skipped_in_a_row, self.samples_kept = history, values, skipped, kept


def _checked_row(row: Any) -> dict[str, Any]:
    """A copy of a row of the history, whose values are numbers beside its mode."""
    if not is_row(row) or not all(isinstance(value, (int, float)) for name, value in row.items() if name != "mode"):
        raise ValueError(f"a row of the history is {str(row)[:100]}; it needs a mode, an epoch, a step and numbers")
    return dict(row)


class AlgorithmState:
    """What training algorithms keep, as a part of a checkpoint of its own.

    Args:
        state: The state of the run.
    """

    resets_with_optimizer: ClassVar[bool] = True

    def __init__(self, state: TrainState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """By the algorithms' own keys."""
        return self._state.algorithm

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._state.algorithm = dict(state_dict)


@dataclass(frozen=True)
class Bookmark:
    """Where a run stood before a step, to go back there from the end of it."""

    context: ExecutionContext
    totals: Totals | None
    skipped_in_a_row: int
    samples_kept: int

    @staticmethod
    def of(state: TrainState) -> Bookmark:
        """Where the run stands within an epoch."""
        epoch = state.epoch_progress
        totals = None if epoch is None else epoch.totals.copy()
        return Bookmark(replace(state.training), totals, state.skipped_in_a_row, state.samples_kept)

    def restore(self, state: TrainState) -> None:
        """Let the run stand there, as if the mini-batch since then had not been."""
        vars(state.training).update(vars(self.context))
        state.skipped_in_a_row, state.samples_kept = self.skipped_in_a_row, self.samples_kept
        if state.epoch_progress is not None and self.totals is not None:
            state.epoch_progress.totals, state.epoch_progress.complete = self.totals, False
