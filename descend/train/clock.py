"""How far a run has come, in steps, epochs and seconds: what its stopping criterion decides by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.train.progress import ExecutionContext, Mode, Progress

if TYPE_CHECKING:
    from descend.train.run import Run

__all__ = ["RunClock"]


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
