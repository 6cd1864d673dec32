"""One update: forward and backward over the parts of a mini-batch, one division, one step of the optimizer."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import torch

from descend.errors import ConfigurationError, DescendError, NumericalError
from descend.runtime import seed_step
from descend.train.events import Event, PartView, StepView
from descend.train.memory import out_of_memory, retry_on_oom
from descend.train.micro_batch import accumulate, forward, padding_micro_batches, run_padding, split_into_micro_batches
from descend.train.nonfinite_report import diagnose_batch, nonfinite_message
from descend.train.progress import Mode
from descend.train.strategies.majority_vote import all_gather_names
from descend.train.task import Ratio, Totals

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.data import Batch
    from descend.train.events import RunView
    from descend.train.micro_batch import MicroBatch
    from descend.train.session import EpochProgress, Session
    from descend.train.strategies.data_parallel import DataParallelStep

__all__ = ["gradient", "take_step"]

_NOTHING = contextlib.nullcontext()


def take_step(session: Session, batch: Batch, gathered: EpochProgress, run: RunView) -> None:
    """One update: forward and backward over the parts of the mini-batch, then one division and one step."""
    context, callbacks = session.contexts[Mode.TRAIN], session.callbacks
    number, epoch = context.step + 1, context.epoch

    def view(objective: Ratio | None) -> StepView:
        return StepView(number, epoch, batch, session.task.module, session.optimizer, objective, run, session.watch)

    session.batches[Mode.TRAIN] = batch
    if callbacks.wants(Event.BEFORE_STEP):
        callbacks.fire(Event.BEFORE_STEP, view(None))
        batch = session.batches[Mode.TRAIN]
    session.buffers.keep()
    if session.together:
        session.together.begin()
    seen = None
    try:
        objective, totals = _gradient_of(session, batch, run)
        if callbacks.wants(Event.AFTER_BACKWARD) or callbacks.wants(Event.AFTER_STEP):
            seen = view(objective)
            callbacks.fire(Event.AFTER_BACKWARD, seen)
    except DescendError:
        session.buffers.restore()  # what is saved next is the state before this step
        raise
    if faulty := _faulty(session):
        _leave_out(session, batch, gathered, faulty, float(_quotient(objective)))
        gathered.totals.join(totals)
        session.watch.clear()
        return
    session.numerics.clip(session.own_weights, session.cut.norms if session.cut else None)
    session.update()
    if session.together:
        session.together.end(batch)
    session.skipped_in_a_row = 0
    gathered.totals.join(totals)
    context.advance(batch.size)
    session.communicator.status.steps += 1
    gathered.complete = batch.last  # before anybody may save this moment
    callbacks.fire(Event.AFTER_STEP, seen)
    session.watch.clear()


def _quotient(ratio: Ratio) -> torch.Tensor:
    return ratio.numerator / ratio.denominator


def _faulty(session: Session) -> list[str]:
    """Names of the weights whose gradient is not finite, on any rank or after it was preconditioned."""
    faulty = session.numerics.nonfinite_parameters(session.own_weights)
    if session.vote or session.cut:
        faulty = all_gather_names(faulty, session.communicator)
    if session.preconditioner is not None and not faulty:
        faulty = session.preconditioner.apply()
    return faulty


def _leave_out(session: Session, batch: Batch, gathered: EpochProgress, faulty: list[str], objective: float) -> None:
    """Pass over a mini-batch whose gradient is not finite, or end the run; weights and state have not changed."""
    session.buffers.restore()
    too_large = math.isfinite(objective) and session.numerics.lower_scale()
    if not too_large:
        session.numerics.keep_scale()
        session.skipped_in_a_row += 1
        streak = session.skipped_in_a_row >= session.numerics.IN_A_ROW and session.numerics.on_nonfinite == "skip"
        if session.numerics.on_nonfinite == "stop" or streak:
            step = session.contexts[Mode.TRAIN].step + 1
            session.optimizer.zero_grad()
            looking = session.together or session.late
            causes = looking.diagnose(batch) if looking else [diagnose_batch(batch)]
            raise NumericalError(nonfinite_message(step, faulty, objective, causes, session.skipped_in_a_row))
    gathered.skipped += 1
    session.contexts[Mode.TRAIN].leave_out(batch.size)
    gathered.complete = batch.last


def _gradient_of(session: Session, batch: Batch, run: RunView) -> tuple[Ratio, Totals]:
    """The gradient of the mini-batch at the weights of now, or one that comes late."""
    if session.late is None:
        return _gradient(session, batch, run)
    objective, totals = session.late.gradient(session, lambda: gradient(session, batch, run))
    return Ratio(objective, 1.0), totals


def gradient(session: Session, batch: Batch, run: RunView) -> tuple[torch.Tensor, Totals]:
    """Leave the gradient of the whole mini-batch in the module; return its objective, detached, and its sums."""
    objective, totals = _gradient(session, batch, run)
    return _quotient(objective), totals


def _gradient(session: Session, batch: Batch, run: RunView) -> tuple[Ratio, Totals]:
    """Leave the gradient of the whole mini-batch in the module; return its objective, detached, and its sums.

    A step that is made again draws the same random numbers, so nothing but the memory differs.
    """

    def attempt() -> tuple[Ratio, Totals]:
        _clear(session)
        seed_step(session.seed, session.contexts[Mode.TRAIN].step, batch.position)
        if session.together:
            session.together.begin_accumulation(batch)
        if session.preconditioner:
            session.preconditioner.begin()
        with session.watch.attached():
            return _backward(session, batch, run)

    return retry_on_oom(session, _largest_share(session, batch), session.unit, attempt, session.buffers.restore)


def _largest_share(session: Session, batch: Batch) -> int:
    """Samples of a mini-batch on the rank that has most of them, so that all ranks choose micro-batches alike."""
    if session.communicator.world_size == 1:
        return len(batch.ids)
    unit = session.unit or 1
    return math.ceil(math.ceil(batch.size / unit) / session.communicator.world_size) * unit


def _clear(session: Session) -> None:
    """Forget the gradients of the step before; an optimizer that does more than that is asked to."""
    if type(session.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        session.optimizer.zero_grad()
    for p in session.weights.values():
        p.grad = None


def _backward(session: Session, batch: Batch, run: RunView) -> tuple[Ratio, Totals]:
    """The gradient, with the micro-batches that are set.

    The backward pass of one part begins with its share of the mean, which costs nothing. Several parts are summed and
    divided at the end, so that how they were cut changes nothing; those of several ranks for the most part on their way
    to each other, see `together.py`.
    """
    some, totals = list(split_into_micro_batches(session, batch, session.unit)), Totals()
    alone = len(some) == 1 and session.together is None
    others = padding_micro_batches(session, batch, some)
    with _told_if_out_of_memory(session, session.together, batch) if session.together else _NOTHING:
        ratios = [_backward_of(session, part, i, len(some), alone, totals, run) for i, part in enumerate(some)]
        run_padding(session, others, backward=True)
    if alone:
        session.numerics.unscale(session.optimizer)
        objective = ratios[0]
    else:
        sums = sum((ratio.numerator for ratio in ratios), torch.zeros(())), sum(ratio.denominator for ratio in ratios)
        objective = _divide(session, batch, *sums)
    denominator = objective.denominator
    session.signal_divisor = 1.0 if alone else denominator
    if session.preconditioner:
        session.preconditioner.finish_accumulation(session.signal_divisor)
    penalty = session.task.penalty()
    if penalty is not None:
        penalty.backward()
        objective = Ratio(_quotient(objective) + penalty.detach(), 1.0)
        if session.communicator.is_rank_zero:  # of several ranks, which add up their totals
            totals.add("objective", Ratio(penalty.detach() * denominator, 0.0))
    if session.contexts[Mode.TRAIN].step == 0 and denominator:
        _require_gradient(session)
    return objective, totals


def _require_gradient(session: Session) -> None:
    """Raise an error where the objective depends on no weights; one that has been frozen on the way may."""
    trained = [p for p in session.weights.values() if p.requires_grad]
    if trained and all(p.grad is None for p in trained):
        raise ConfigurationError(
            "the objective depends on none of the weights that are trained, so nothing would be learnt: look for "
            ".detach(), torch.no_grad() or .item() in the forward pass and in the loss"
        )


def _backward_of(
    session: Session, part: MicroBatch, index: int, of: int, alone: bool, totals: Totals, run: RunView
) -> Ratio:
    """Add the gradient of one part; its objective, detached. A part that is alone has its gradient divided at once."""
    if session.together and index == of - 1 and not session.cut:
        session.together.enable_overlap()
    preconditioner = session.preconditioner
    with preconditioner.observing(part) if preconditioner else _NOTHING:
        losses = forward(session, part)
    accumulate(totals, losses)
    top, bottom = losses.objective
    bottom = _counted(bottom) if alone else bottom
    if top.requires_grad:  # nothing to differentiate where every trained weight has been frozen since
        with session.cut.backward() if session.cut else _NOTHING:
            torch.autograd.backward(top, session.numerics.scaled(_start(top, bottom if alone else 1.0)))
    if session.callbacks.wants(Event.AFTER_PART):
        view = PartView(part.step + 1, index, of, part.count, session.task.module, run)
        session.callbacks.fire(Event.AFTER_PART, view)
    return Ratio(top.detach(), bottom)


@contextlib.contextmanager
def _told_if_out_of_memory(session: Session, together: DataParallelStep, batch: Batch) -> Generator[None]:
    """Where memory runs out and the step can be made again, the other ranks make it again too."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if session.adaptive and out_of_memory(error):
            together.all_reduce(batch, torch.zeros(2, dtype=torch.float64), short=error)
        elif session.turns and out_of_memory(error):
            error.add_note(
                "the ranks wait for each other within a step, so it cannot be made again with smaller micro-batches: "
                "set micro_batch_size"
            )
        raise


def _start(top: torch.Tensor, divisor: torch.Tensor | float) -> torch.Tensor:
    """What a backward pass begins with for the gradient of top / divisor; a node of its own would take 15 µs more."""
    return torch.ones_like(top) / divisor if isinstance(divisor, torch.Tensor) else top.new_full((), 1 / divisor)


def _counted(denominator: torch.Tensor | float) -> torch.Tensor | float:
    """The denominator, or 1 where nothing was counted: then the numerator is 0 and so is the gradient.

    It is a number wherever no device has to be waited for: a CPU computes sooner with these than with tensors.
    """
    if not isinstance(denominator, torch.Tensor):
        return denominator or 1.0
    return denominator.item() or 1.0 if denominator.is_cpu else denominator + (denominator == 0)


def _divide(session: Session, batch: Batch, numerator: torch.Tensor, denominator: torch.Tensor | float) -> Ratio:
    """Sum gradients, numerator and denominator over ranks, and divide where the sums are not divided yet.

    Returns:
        The objective.
    """
    sums = torch.stack([numerator.double(), torch.as_tensor(denominator, dtype=torch.float64, device=numerator.device)])
    own, done = _counted(sums[1].clone()), 1.0
    if session.together:
        sums, done = session.together.all_reduce(batch, sums), session.together.divided_by
    session.numerics.unscale(session.optimizer)
    top, bottom = sums
    bottom = _counted(bottom)
    divisor = (own if session.vote else bottom) / done  # who votes has an opinion of its own samples alone
    if isinstance(divisor, torch.Tensor) or divisor != 1.0:
        for p in session.own_weights.values():
            if p.grad is not None:
                p.grad.div_(divisor)
    return Ratio(top.to(numerator.device), bottom)
