"""The training loop: how mini-batches become updates, drawn once. `events.py` shows the order of its moments."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import Stopped
from descend.train.events import EpochView, EvaluationView, Event, RunView, StepView
from descend.train.progress import ExecutionContext, Mode, Progress
from descend.train.task import Losses, Ratio, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from descend.data import Batch, Batches
    from descend.runtime import Process
    from descend.train.callback import Callbacks
    from descend.train.stopping import Stop
    from descend.train.task import Task

__all__ = ["Session", "evaluate", "train"]


@dataclass
class Session:
    """Everything a training algorithm works on: one model, its data, and where each mode stands.

    Attributes:
        name: The model's name in logs.
        task: The module and its losses.
        optimizer: What updates the module.
        data: Mini-batches by mode; training is required, the others are optional.
        process: This process among its ranks, and its device.
        callbacks: Who watches.
        micro_batch_size: Samples of a mini-batch that go through the module at once; None for all of them.
        stop_requested: Returns the name of a signal that asked for an end, or None.
        record: Takes one row of `metrics.jsonl` as soon as it is known.
        contexts: One execution context a mode.
        seconds: Training time over all restarts.
        history: All rows so far.
    """

    name: str
    task: Task
    optimizer: torch.optim.Optimizer
    data: Mapping[Mode, Batches]
    process: Process
    callbacks: Callbacks
    micro_batch_size: int | None = None
    epochs: int | None = None
    stop_requested: Callable[[], str | None] = lambda: None
    record: Callable[[dict[str, Any]], None] = lambda row: None
    contexts: dict[Mode, ExecutionContext] = field(
        default_factory=lambda: {mode: ExecutionContext(mode) for mode in Mode}
    )
    seconds: float = 0.0
    seconds_this_run: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    values: dict[str, float] = field(default_factory=dict[str, float])

    def view(self, reason: str | None = None) -> RunView:
        """The run as callbacks see it."""
        return RunView(
            name=self.name,
            module=self.task.module,
            optimizer=self.optimizer,
            steps_per_epoch={mode: batches.steps_per_epoch for mode, batches in self.data.items()},
            batch_sizes={mode: (batches.first_size, batches.last_size) for mode, batches in self.data.items()},
            epochs=self.epochs,
            reason=reason,
        )

    def progress(self, since: ExecutionContext) -> Progress:
        """What a stopping criterion sees, counting from the context `since`."""
        now = self.contexts[Mode.TRAIN]
        return Progress(
            now.step - since.step, now.epoch - since.epoch, self.seconds, self.seconds_this_run, dict(self.values)
        )

    def keep(self, mode: Mode, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Keep the outcome of one pass as a row of the history."""
        now = self.contexts[Mode.TRAIN]
        row = {
            "mode": mode.value,
            "epoch": now.epoch,
            "step": now.step,
            **values,
            "samples": samples,
            "seconds": seconds,
        }
        self.values.update({f"{mode.value}/{name}": value for name, value in values.items()})
        self.history.append(row)
        self.record(row)


def train(session: Session, stop: Stop) -> str:
    """Train until `stop` says why it is enough.

    Returns:
        The reason, a sentence.

    Raises:
        Stopped: a signal asked for an end; the step that was under way is finished.
        NumericalError: from the optimizer, before a weight changed.
    """
    since = ExecutionContext(**vars(session.contexts[Mode.TRAIN]))
    reason = stop.reason(session.progress(since))
    while reason is None:
        reason = _epoch(session, stop, since)
    return reason


def _epoch(session: Session, stop: Stop, since: ExecutionContext) -> str | None:
    """One pass over the training samples, or what is left of it, and the validation that follows."""
    context, batches = session.contexts[Mode.TRAIN], session.data[Mode.TRAIN]
    totals, reason, seen, began = Totals(), None, context.samples, time.monotonic()
    epoch, run = context.epoch, session.view()
    step_seconds: list[float] = []
    session.callbacks.fire(Event.BEFORE_EPOCH, EpochView(epoch, context.step, run, samples=(0, batches.num_samples)))
    clock = began
    session.task.module.train()
    for batch in batches.epoch(epoch, context.position):
        _step(session, batch, totals)
        now = time.monotonic()
        step_seconds.append(now - clock)
        session.seconds += now - clock
        session.seconds_this_run += now - clock
        clock = now
        _obey(session)
        finished = context.position == batches.steps_per_epoch
        if not finished and (reason := stop.reason(session.progress(since))):
            break
    if context.position == batches.steps_per_epoch:
        context.finish_epoch()
    values, samples, seconds = totals.values(), context.samples - seen, time.monotonic() - began
    session.keep(Mode.TRAIN, values, samples, seconds)
    if Mode.VALIDATION in session.data:
        evaluate(session, Mode.VALIDATION)
    view = EpochView(
        epoch,
        context.step,
        run,
        values,
        session.task.units,
        (samples, batches.num_samples),
        seconds,
        tuple(step_seconds),
    )
    session.callbacks.fire(Event.AFTER_EPOCH, view)
    return reason or stop.reason(session.progress(since))


def _obey(session: Session) -> None:
    """End the run between two steps if a signal has asked for it."""
    if signal := session.stop_requested():
        at = session.contexts[Mode.TRAIN]
        raise Stopped(
            f"stopped by {signal} after step {at.step:,}, in epoch {at.epoch} (step {at.position} of the epoch)"
        )


def _step(session: Session, batch: Batch, totals: Totals) -> None:
    """One update: forward and backward over the parts of the mini-batch, then one division and one step."""
    context, callbacks, optimizer = session.contexts[Mode.TRAIN], session.callbacks, session.optimizer

    def view(objective: torch.Tensor | None = None) -> StepView:
        return StepView(context.step + 1, context.epoch, batch, session.task.module, optimizer, objective)

    if callbacks.wants(Event.BEFORE_STEP):
        callbacks.fire(Event.BEFORE_STEP, view())
    optimizer.zero_grad()
    objective = _backward(session, batch, totals)
    if callbacks.wants(Event.AFTER_BACKWARD):
        callbacks.fire(Event.AFTER_BACKWARD, view(objective))
    optimizer.step()
    if callbacks.wants(Event.AFTER_STEP):
        callbacks.fire(Event.AFTER_STEP, view(objective))
    context.advance(batch.size)


def _backward(session: Session, batch: Batch, totals: Totals) -> torch.Tensor:
    """Leave the gradient of the whole mini-batch in the module; return its objective, detached.

    One part is divided before its backward pass, which costs nothing. Several parts are summed and divided once at
    the end, so that how they were cut changes nothing.
    """
    parts = list(_parts(session, batch))
    alone = len(parts) == 1 and session.process.ranks == 1
    tops: list[torch.Tensor] = []
    bottoms: list[torch.Tensor | float] = []
    for fields in parts:
        losses = session.task.losses(fields)
        top, bottom = losses.objective
        (top / _counted(bottom) if alone else top).backward()
        tops.append(top.detach())
        bottoms.append(bottom)
        _count(totals, losses)
    numerator, denominator = sum(tops[1:], tops[0]), sum(bottoms[1:], bottoms[0])
    if not alone:
        numerator, denominator = _divide(session, numerator, denominator)
    denominator = _counted(denominator)
    objective = numerator / denominator
    penalty = session.task.penalty()
    if penalty is not None:
        penalty.backward()
        objective = objective + penalty.detach()
        totals.add("objective", Ratio(penalty.detach() * denominator, 0.0))
    return objective


def _counted(denominator: torch.Tensor | float) -> torch.Tensor | float:
    """The denominator, or 1 where nothing was counted: then the numerator is 0 and so is the gradient."""
    if isinstance(denominator, torch.Tensor):
        return torch.where(denominator == 0, torch.ones_like(denominator), denominator)
    return denominator or 1.0


def _divide(
    session: Session, numerator: torch.Tensor, denominator: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum gradients, numerator and denominator over ranks and divide the gradients once."""
    top, bottom = session.process.sum(
        torch.stack([numerator.double(), torch.as_tensor(denominator, dtype=torch.float64)])
    )
    for p in session.task.module.parameters():
        if p.grad is not None:
            session.process.sum(p.grad).div_(_counted(bottom))
    return top, bottom


def _count(totals: Totals, losses: Losses) -> None:
    totals.add("objective", losses.objective)
    for name, ratio in losses.metrics.items():
        totals.add(name, ratio)


def _parts(session: Session, batch: Batch) -> Iterator[dict[str, torch.Tensor]]:
    """The mini-batch cut into micro-batches, on the device of the run."""
    fields = {name: session.process.to_device(array) for name, array in batch.fields.items()}
    count = len(batch.ids)
    size = session.micro_batch_size or count
    if size >= count:
        yield fields
        return
    for start in range(0, count, size):
        yield {name: tensor[start : start + size] for name, tensor in fields.items()}


@torch.no_grad()
def evaluate(session: Session, mode: Mode) -> dict[str, float]:
    """Objective and metrics over every sample of `mode`, each counted once whatever the size of a mini-batch.

    Returns:
        "objective" and each metric by name.
    """
    batches, context, run = session.data[mode], session.contexts[mode], session.view()
    at = session.contexts[Mode.TRAIN]
    totals, began, seen = Totals(), time.monotonic(), 0
    step_seconds: list[float] = []
    session.callbacks.fire(
        Event.BEFORE_EVALUATION, EvaluationView(mode, at.epoch, at.step, run, samples=(0, batches.num_samples))
    )
    was_training = session.task.module.training
    session.task.module.eval()
    clock = began
    for batch in batches.epoch(0, context.position):
        for fields in _parts(session, batch):
            _count(totals, session.task.losses(fields))
        seen += batch.size
        context.advance(batch.size)
        now = time.monotonic()
        step_seconds.append(now - clock)
        clock = now
        _obey(session)
    context.finish_epoch()
    session.task.module.train(was_training)
    values, seconds = totals.values(), time.monotonic() - began
    if (penalty := session.task.penalty()) is not None:
        values["objective"] += float(penalty)
    session.keep(mode, values, seen, seconds)
    view = EvaluationView(
        mode,
        at.epoch,
        at.step,
        run,
        values,
        session.task.units,
        (seen, batches.num_samples),
        seconds,
        tuple(step_seconds),
    )
    session.callbacks.fire(Event.AFTER_EVALUATION, view)
    return values
