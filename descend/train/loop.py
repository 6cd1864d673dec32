"""The training loop: pass after pass over the training samples, and step after step in each.

`events.py` shows the order of its moments, `step.py` what a step is, `evaluation.py` what follows a pass, `endings.py`
what cuts one short and `session.py` all that stays between them.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from descend.errors import DataError
from descend.train.endings import interruptible, raise_if_stop_requested, stop_reason
from descend.train.evaluation import evaluate
from descend.train.events import EpochView, Event
from descend.train.progress import Mode
from descend.train.session import EpochProgress
from descend.train.step import take_step

if TYPE_CHECKING:
    from descend.train.events import RunView
    from descend.train.session import Session
    from descend.train.stopping import Stop

__all__ = ["train"]


def train(session: Session, stop: Stop) -> str:
    """Train until `stop` says why it is enough.

    Returns:
        The reason, a sentence.

    Raises:
        Stopped: a signal asked for an end; the step that was under way is finished.
        NumericalError: a gradient was not finite. Everything is as it was before that step.
    """
    if session.began is None:
        session.began = replace(session.contexts[Mode.TRAIN])
    reason = None
    if session.epoch_progress is None or session.epoch_progress.reported:
        reason = stop_reason(session, stop)
    while reason is None:
        reason = _epoch(session, stop)
    session.began = None
    return reason


def _epoch(session: Session, stop: Stop) -> str | None:
    """One pass over the training samples, or what is left of it, and the validation that follows."""
    context, batches, run = session.contexts[Mode.TRAIN], session.data[Mode.TRAIN], session.view()
    gathered = session.epoch_progress = session.epoch_progress or EpochProgress(context.samples, len(session.history))
    session.rewind(gathered.rows_before)
    gathered.reported = gathered.reporting = False
    epoch, total = context.epoch, batches.num_samples
    session.meet(f"the beginning of epoch {epoch}, step {context.step}")
    samples = context.samples - gathered.samples_before
    view = EpochView(epoch, context.step, run, samples=(samples, total), position=context.position)
    session.callbacks.fire(Event.BEFORE_EPOCH, view)
    reason = _steps(session, stop, gathered, run)
    session.step_began, gathered.reporting = None, True
    values = gathered.totals.over(session.communicator).values() | dict(session.outside())
    samples, position = context.samples - gathered.samples_before, context.position
    if gathered.skipped:
        values["skipped_steps"] = float(gathered.skipped)
    session.keep(Mode.TRAIN, values, samples, gathered.seconds)
    if Mode.VALIDATION in session.data:
        evaluate(session, Mode.VALIDATION)
    if gathered.complete:
        context.finish_epoch()
        session.epoch_progress = None
    gathered.reported = True
    units, times = session.task.units, tuple(gathered.step_seconds)
    view = EpochView(
        epoch, context.step, run, values, units, (samples, total), gathered.seconds, times, gathered.complete, position
    )
    session.callbacks.fire(Event.AFTER_EPOCH, view)
    return reason or stop_reason(session, stop)


def _steps(session: Session, stop: Stop, gathered: EpochProgress, run: RunView) -> str | None:
    """The steps of a pass that are still to be made; the reason if one of them was the last of the run."""
    context = session.contexts[Mode.TRAIN]
    session.task.module.train()
    if gathered.complete:
        return None
    if reason := stop_reason(session, stop):  # a checkpoint of the last step of all
        return reason
    session.step_began = session.communicator.now()
    while not gathered.complete:  # once, unless a callback changes the size of a mini-batch on the way
        session.recut = False
        with contextlib.closing(session.batches_to_come()) as steps:
            for batch in interruptible(session, steps):
                take_step(session, batch, gathered, run)
                now = session.communicator.now()
                for_step, session.step_began = now - session.step_began, now
                gathered.step_seconds.append(for_step)
                gathered.seconds += for_step
                session.seconds += for_step
                raise_if_stop_requested(session)
                # A pass that is complete is followed by its validation first, which a criterion may want to see.
                if not batch.last and (reason := stop_reason(session, stop)):
                    return reason
                if session.recut:
                    break
        if not gathered.complete and not session.recut:
            raise DataError(
                f"epoch {context.epoch} ended after {context.taken:,} samples, before its last mini-batch: the data "
                "have become fewer since the run began; continue with the same data"
            )
    return None
