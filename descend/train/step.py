"""One update: forward and backward over the micro-batches of a mini-batch, the transforms, one step of the optimizer.

What differs between runs lives in four parts: the strategy (ranks), the precision (loss scale), the transforms (finite
check, K-FAC, penalty, clipping) and the callbacks. A run without one of them has a null object there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.runtime import seed_step
from descend.train.events import Event, PartView
from descend.train.micro_batch import largest_share, retry_on_oom
from descend.train.objective import Ratio, Totals
from descend.train.progress import Mode

if TYPE_CHECKING:
    from descend.data import Batch
    from descend.train.micro_batch import MicroBatch
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients, Withheld

__all__ = ["accumulate", "compute_gradients", "train_step"]


def train_step(run: Run, batch: Batch) -> Gradients:
    """One update from a mini-batch; a step that is skipped leaves parameters, buffers and optimizer as they were."""
    batch = before_step(run, batch)
    with run.buffer_snapshot.restored_on_error():
        gradients = compute_gradients(run, batch)
        for transform in run.transforms.after_reduce:
            if withheld := transform(gradients):
                return withhold(run, gradients, withheld)
        run.strategy.optimizer_step(batch)
    run.state.advance(batch, gradients.totals)
    run.communicator.status.steps += 1  # tells the watchdog that this rank advances
    after_step(run, gradients)
    return gradients


def compute_gradients(run: Run, batch: Batch) -> Gradients:
    """The gradient of a mini-batch, in the `.grad` of the parameters; computed again if memory runs out on any rank."""
    unit = run.task.micro_batch_unit
    largest = largest_share(batch, unit, run.communicator.world_size)
    return run.strategy.gradients(
        batch,
        lambda: retry_on_oom(run, largest, unit, lambda: accumulate(run, batch), undo=run.buffer_snapshot.restore),
    )


def accumulate(run: Run, batch: Batch) -> Gradients:
    """Forward and backward over all micro-batches, then one reduction over ranks and one division.

    A step that is repeated draws the same random numbers, so only its use of memory differs.
    """
    run.clear_gradients()
    seed_step(run.seed, run.state.step, batch.position + run.state.samples_kept)
    run.transforms.begin()
    totals, ratios = Totals(), list[Ratio]()
    with run.activations.attached(), run.strategy.accumulating(batch):
        for micro_batch in run.strategy.micro_batches(batch):
            with run.transforms.observing(micro_batch):
                losses = run.task.losses(micro_batch)
            totals.add_losses(losses)
            ratios.append(run.strategy.backward(losses.objective, micro_batch))
            after_micro_batch(run, micro_batch)
    return run.transforms.apply_local(run.strategy.reduce(batch, ratios, totals))


def withhold(run: Run, gradients: Gradients, withheld: Withheld) -> Gradients:
    """Count a mini-batch without an update: skipped, or accumulated for a later one."""
    if withheld.skipped:
        run.buffer_snapshot.restore()
        run.state.note_skipped()
        run.checks.updates.last_withheld = withheld.reason
    else:
        run.state.samples_kept += gradients.batch.size  # their gradient is kept for a later update
    run.state.pass_over(gradients.batch, gradients.totals)
    run.activations.clear()
    return gradients


# ---- what callbacks see


def before_step(run: Run, batch: Batch) -> Batch:
    """Show a mini-batch to the callbacks, which may put another in its place."""
    run.state.batches[Mode.TRAIN] = batch
    if run.callbacks.wants(Event.BEFORE_STEP):
        run.callbacks.fire(Event.BEFORE_STEP, run.views.of_step(batch))
        return run.state.batches[Mode.TRAIN]
    return batch


def after_micro_batch(run: Run, micro_batch: MicroBatch) -> None:
    """Show the callbacks a micro-batch whose gradient has been added."""
    if run.callbacks.wants(Event.AFTER_PART):
        number, index, of = micro_batch.step + 1, micro_batch.index, micro_batch.of
        view = PartView(number, index, of, micro_batch.count, run.task.module, run.views.of_epoch)
        run.callbacks.fire(Event.AFTER_PART, view)


def after_step(run: Run, gradients: Gradients) -> None:
    """Show the callbacks the update."""
    if run.callbacks.wants(Event.AFTER_STEP):
        run.callbacks.fire(Event.AFTER_STEP, gradients.view)
    run.activations.clear()
