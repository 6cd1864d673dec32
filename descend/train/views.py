"""What callbacks see of a run, and how they learn of its beginning and its end."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from descend.train.events import Event, RunView, StepView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from descend.data import Batch
    from descend.train.objective import Ratio
    from descend.train.run import Run

__all__ = ["RunViews", "announced"]


class RunViews:
    """Makes the views of a run that its callbacks are called with.

    Args:
        run: The run.

    Attributes:
        of_epoch: The run as callbacks of steps see it, the same throughout an epoch.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.of_epoch = self.of_run()

    def begin_epoch(self) -> None:
        """From now on `of_epoch` is the run as it is at this moment."""
        self.of_epoch = self.of_run()

    def of_run(self, reason: str | None = None) -> RunView:
        """The run at this moment.

        Args:
            reason: Why it ended, once it has.
        """
        run = self._run
        return RunView(
            name=run.name,
            module=run.task.module,
            optimizer=run.optimizer,
            steps_per_epoch={mode: batches.steps_per_epoch for mode, batches in run.data.items()},
            batch_sizes={mode: (batches.first_size, batches.last_size) for mode, batches in run.data.items()},
            epochs=run.epochs,
            save=lambda *request, **more: run.store.save(run, *request, **more),
            unsubscribe=run.callbacks.unsubscribe,
            control=run.control,
            step=run.state.step,
            passes=run.state.epochs_done,
            reason=reason,
            settings=run.config.settings,
            history=run.state.history,
        )

    def of_step(self, batch: Batch, objective: Ratio | None = None) -> StepView:
        """The training step under way."""
        run = self._run
        return StepView(
            run.state.step + 1,
            run.state.training.epoch,
            batch,
            run.task.module,
            run.optimizer,
            objective,
            self.of_epoch,
            run.activations,
        )


@contextmanager
def announced(run: Run, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Generator[None]:
    """Within this block the run takes place: before_run is called first and after_run last, also after an error.

    Every callback is called at the end, and the first error is the one that is raised.

    Args:
        run: The run.
        within: Entered around the calls of callbacks.
    """
    try:
        with within():
            run.callbacks.fire(Event.BEFORE_RUN, run.views.of_run())
        yield
    except BaseException:
        _report(run, _announce_end(run, within))
        raise
    if failures := _announce_end(run, within):
        _report(run, failures[1:])
        raise failures[0]


def _announce_end(run: Run, within: Callable[[], AbstractContextManager[object]]) -> list[BaseException]:
    with within():
        return run.callbacks.fire_all(Event.AFTER_RUN, run.views.of_run(run.state.end))


def _report(run: Run, failures: Sequence[BaseException]) -> None:
    for failure in failures:
        run.say(f"after_run, called because of another error, raised {type(failure).__name__}: {failure}")
