"""Where a run stands: one execution context per model and mode, and the clock that a stopping criterion reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run

__all__ = ["ExecutionContext", "Mode", "Progress", "RunClock"]


class Mode(StrEnum):
    """What a model is being used for. The values are the words of `metrics.jsonl`."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"
    TOURNAMENT = "tournament"

    @property
    def role(self) -> str:
        """The role of the reader that feeds this mode, in the words of a DataReader."""
        return "validate" if self is Mode.VALIDATION else self.value


@dataclass
class ExecutionContext:
    """The position of one model in one mode. A few integers, so it is saved and restored exactly.

    Attributes:
        mode: What the model is used for.
        step: Mini-batches done since the run began; in training, the number of updates.
        epoch: Whole passes done.
        position: Mini-batches done within the current pass.
        samples: Samples seen since the run began.
        taken: Samples seen within the current pass.
    """

    mode: Mode
    step: int = 0
    epoch: int = 0
    position: int = 0
    samples: int = 0
    taken: int = 0

    def advance(self, samples: int) -> None:
        """Count one mini-batch of `samples` samples."""
        self.step += 1
        self.leave_out(samples)

    def leave_out(self, samples: int) -> None:
        """Count one mini-batch of `samples` samples that made no update."""
        self.position += 1
        self.samples += samples
        self.taken += samples

    def finish_epoch(self) -> None:
        """Count one whole pass."""
        self.epoch += 1
        self.position = self.taken = 0

    def state(self) -> dict[str, int | str]:
        """The context as plain values."""
        return {**asdict(self), "mode": self.mode.value}

    @classmethod
    def from_state(cls, state: dict[str, int | str]) -> ExecutionContext:
        """The context that `state` described."""
        numbers = {name: int(state[name]) for name in ("step", "epoch", "position", "samples", "taken")}
        return cls(mode=Mode(state["mode"]), **numbers)


class Progress(NamedTuple):
    """What a stopping criterion may look at.

    Attributes:
        step: Updates applied, counted from where the algorithm was started.
        epoch: Whole passes, counted likewise.
        seconds: Training time by the monotonic clock over all restarts.
        seconds_this_run: Time since this process began the run, evaluations and saves included.
        values: The newest value of each recorded quantity, by `mode/name` such as "validation/accuracy".
        seconds_to_end: What ending the run will take, as far as it was measured: twice the longest save, one step, and
            the evaluations.
    """

    step: int
    epoch: int
    seconds: float
    seconds_this_run: float = 0.0
    values: Mapping[str, float] = MappingProxyType({})
    seconds_to_end: float = 0.0


# ---- how far a run has come, in steps, epochs and seconds: what its stopping criterion decides by


class RunClock:
    """Measures the progress of a run.

    Args:
        run: The run; its time counts from now.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.start()

    def start(self) -> None:
        """Count `seconds_this_run` from now, by the clock that all ranks read alike once they are synchronized."""
        self._began_seconds = self._run.communicator.now()

    def progress(self) -> Progress:
        """What a stopping criterion sees, counted from where the algorithm under way was started."""
        run = self._run
        state, since = run.state, run.state.began or _BEGINNING
        steps = state.epoch_progress.step_seconds if state.epoch_progress else ()
        last_step = steps[-1] if steps else 0.0
        return Progress(
            state.step - since.step,
            state.epochs_done - since.epoch,
            state.seconds,
            run.communicator.now() - self._began_seconds,
            state.values,
            2 * run.store.save_seconds + last_step + sum(state.evaluation_seconds.values()),
        )


_BEGINNING = ExecutionContext(Mode.TRAIN)
