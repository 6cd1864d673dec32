"""A pass over samples that are not learnt from: objective and metrics over every one of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from descend.optim import Optimizer
from descend.runtime import seed_evaluation
from descend.runtime.seeds import forked_rng
from descend.train.endings import interruptible, raise_if_stop_requested
from descend.train.events import EvaluationView, Event, StepView
from descend.train.memory import retry_on_oom
from descend.train.micro_batch import accumulate, forward, padding_micro_batches, run_padding, split_into_micro_batches
from descend.train.progress import Mode
from descend.train.strategies.fsdp import reshard
from descend.train.task import Totals

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.data import Batch
    from descend.train.events import RunView
    from descend.train.session import Session

__all__ = ["averaged", "evaluate"]


@torch.no_grad()
def evaluate(session: Session, mode: Mode) -> dict[str, float]:
    """Objective and metrics over every sample of `mode`, each counted once whatever the size of a mini-batch.

    Returns:
        "objective" and each metric by name.

    Raises:
        Stopped: a signal asked for an end; the evaluation is to be made again from its beginning.
    """
    batches, run, at = session.data[mode], session.view(), session.contexts[Mode.TRAIN]
    total = batches.num_samples
    view = EvaluationView(mode, session.passes, at.step, run, samples=(0, total))
    session.callbacks.fire(Event.BEFORE_EVALUATION, view)
    session.meet(f"the beginning of {mode} at step {at.step}")
    began = session.communicator.now()
    with _averaged(session), forked_rng(session.communicator.device):
        totals, seen, times = _measure(session, mode, run)
        penalty = session.task.penalty()
        values = totals.over(session.communicator).values() | dict(session.outside())
    seconds = session.communicator.now() - began
    session.note_evaluation(mode, seconds)
    if penalty is not None:
        values["objective"] += float(penalty)
    session.keep(mode, values, seen, seconds)
    counts, units = (seen, total), session.task.units
    view = EvaluationView(mode, session.passes, at.step, run, values, units, counts, seconds, tuple(times))
    session.callbacks.fire(Event.AFTER_EVALUATION, view)
    return values


@contextlib.contextmanager
def _averaged(session: Session) -> Generator[None]:
    """`averaged` on all ranks, of which each can only make its own weights those to evaluate."""
    with averaged(session.optimizer):
        if session.sharding:
            session.sharding.exchange()
        yield
    if session.sharding:
        session.sharding.exchange()


def averaged(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
    """Within this block weights are those to evaluate, where the optimizer's rule trains at another point."""
    return optimizer.averaged() if isinstance(optimizer, Optimizer) else contextlib.nullcontext()


def _measure(session: Session, mode: Mode, run: RunView) -> tuple[Totals, int, list[float]]:
    """Sums over all samples of a mode, how many there were, and how long each mini-batch took."""
    context, module = session.contexts[mode], session.task.module
    totals, seen, times, clock = Totals(), 0, list[float](), session.communicator.now()
    was_training = module.training
    module.eval()
    try:
        with contextlib.closing(session.data[mode].epoch(0)) as steps:
            for batch in interruptible(session, steps):
                number = context.step + len(times) + 1
                _evaluate_batch(session, _evaluation_step(session, mode, batch, number, run), totals)
                seen += batch.size
                session.meet(f"{mode} batch {batch.step} of {batch.size} samples{', the last' if batch.last else ''}")
                now = session.communicator.now()
                times.append(now - clock)
                clock = now
                raise_if_stop_requested(session)
    finally:
        module.train(was_training)
        reshard(module)
        session.watch.clear()
    if mode is not Mode.TRAIN:  # whose context says where training stands
        context.step += len(times)
        context.samples += seen
        context.epoch += 1
    return totals, seen, times


def _evaluation_step(session: Session, mode: Mode, batch: Batch, number: int, run: RunView) -> StepView:
    module, optimizer = session.task.module, session.optimizer
    return StepView(number, session.passes, batch, module, optimizer, None, run, session.watch, mode)


def _evaluate_batch(session: Session, step: StepView, totals: Totals) -> None:
    """Add the sums of one mini-batch to `totals`."""
    session.batches[step.mode] = step.batch
    session.callbacks.fire(Event.BEFORE_EVALUATION_STEP, step)

    def attempt() -> Totals:
        sums, at = Totals(), session.contexts[Mode.TRAIN].step
        seed_evaluation(session.seed, step.mode.value, at, step.batch.step, step.batch.position)
        some = list(split_into_micro_batches(session, step.batch))
        others = padding_micro_batches(session, step.batch, some) if session.cut else []
        with session.watch.attached():
            for part in some:
                accumulate(sums, forward(session, part))
        run_padding(session, others)
        return sums

    totals.join(retry_on_oom(session, len(step.batch.ids), 1, attempt, lambda: None))
    session.communicator.status.steps += 1
    session.callbacks.fire(Event.AFTER_EVALUATION_STEP, step)
    session.watch.clear()
