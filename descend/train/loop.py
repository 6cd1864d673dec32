"""The training loop: epoch after epoch, and step after step in each.

`events.py` shows the order of its events, `step.py` what a step is, `evaluation.py` what follows an epoch, and
`state.py` what persists between steps.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from descend.errors import DataError, Stopped
from descend.train.evaluation import evaluate, external_metrics
from descend.train.events import EpochView, Event
from descend.train.progress import Mode
from descend.train.state import EpochProgress
from descend.train.step import train_step
from descend.train.stop_signal import interruptible, raise_if_stop_requested

if TYPE_CHECKING:
    from descend.train.run import Run
    from descend.train.stopping import Stop

__all__ = ["train"]


def train(run: Run, stop: Stop) -> str:
    """Train until the criterion, a callback or a signal ends it.

    Returns:
        Why training ended, a sentence.

    Raises:
        Stopped: a signal asked it to stop; the step that was under way is finished.
        NumericalError: a gradient was not finite. Everything is as it was before that step.
    """
    state, reason = run.state, None
    if state.began is None:
        state.began = replace(state.training)
    if state.epoch_progress is None or state.epoch_progress.reported:  # between epochs the criterion may hold already
        reason = _stop_reason(run, stop)
    while reason is None:
        reason = _epoch(run, stop)
    state.began = None
    return reason


def _stop_reason(run: Run, stop: Stop) -> str | None:
    """Why training ends here, according to a callback or the criterion; None where it continues."""
    return run.stop.reason or stop.reason(run.clock.progress())


def _epoch(run: Run, stop: Stop) -> str | None:
    """One epoch, or what is left of it, and the validation that follows."""
    state, data = run.state, run.data[Mode.TRAIN]
    context, number, total = state.training, state.training.epoch, data.num_samples
    progress = state.epoch_progress = state.epoch_progress or EpochProgress(context.samples, len(state.history))
    run.history.truncate(progress.rows_before)
    progress.reported = progress.reporting = False
    run.views.begin_epoch()
    run.strategy.synchronize(f"the beginning of epoch {number + 1}, step {context.step}")
    seen = (context.samples - progress.samples_before, total)
    before = EpochView(number, context.step, run.views.of_epoch, samples=seen, position=context.position)
    run.task.module.train()  # and then callbacks, which may put parts of it into evaluation mode
    run.callbacks.fire(Event.BEFORE_EPOCH, before)
    reason = _settled_steps(run, stop, progress)
    state.step_began, progress.reporting = None, True
    totals = progress.totals.over(run.communicator)
    values = totals.values(run.task.computed) | external_metrics(run)
    seen, position = (context.samples - progress.samples_before, total), context.position
    if progress.skipped:
        values["skipped_steps"] = float(progress.skipped)
    run.history.record(Mode.TRAIN, values, seen[0], progress.seconds, totals.is_empty)
    if Mode.VALIDATION in run.data:
        evaluate(run, Mode.VALIDATION)
    if progress.complete:
        context.finish_epoch()
        state.epoch_progress = None
    progress.reported = True
    after = EpochView(
        number,
        context.step,
        run.views.of_epoch,
        values,
        run.task.units,
        seen,
        progress.seconds,
        tuple(progress.step_seconds),
        progress.complete,
        position,
    )
    run.callbacks.fire(Event.AFTER_EPOCH, after)
    run.checks.updates.after_epoch()
    return reason or _stop_reason(run, stop)


def _settled_steps(run: Run, stop: Stop, progress: EpochProgress) -> str | None:
    """`_steps`, of the last of which all is known."""
    try:
        reason = _steps(run, stop, progress)
    except Stopped:
        run.transforms.settle()
        raise
    run.transforms.settle()
    return reason


def _steps(run: Run, stop: Stop, progress: EpochProgress) -> str | None:
    """The remaining steps of an epoch; the reason if training ended within them."""
    state = run.state
    if progress.complete:
        return None
    if reason := _stop_reason(run, stop):  # resumed from a checkpoint of the final step
        return reason
    within_epoch = stop.ends_within_epoch
    state.step_began, training = run.communicator.now(), state.training
    while not progress.complete:  # once, unless a callback changes the batch size
        state.rebatch = False
        with contextlib.closing(run.strategy.batches()) as batches:
            for batch in interruptible(run, batches):
                train_step(run, batch)
                if training.step >= run.checks.replicas.due:
                    run.checks.replicas.compare()
                _note_time(run, progress)
                raise_if_stop_requested(run)
                # After the last mini-batch comes validation, which a criterion may depend on.
                if not batch.last and (reason := _stop_reason(run, stop) if within_epoch else run.stop.reason):
                    return reason
                if state.rebatch:
                    break
        if not progress.complete and not state.rebatch:
            context = state.training
            raise DataError(
                f"epoch {context.epoch + 1} ended after {context.taken:,} samples, before its last mini-batch: the "
                "data set has shrunk since the run began; continue with the same data"
            )
    return None


def _note_time(run: Run, progress: EpochProgress) -> None:
    """Count the time of the step that has just ended."""
    state, now = run.state, run.communicator.now()
    seconds = 0.0 if state.step_began is None else now - state.step_began
    state.step_began = now
    progress.step_seconds.append(seconds)
    progress.seconds += seconds
    state.seconds += seconds
