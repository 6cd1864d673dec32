"""A pass over samples that are not trained on: objective and metrics over every one of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from descend.runtime import seed_evaluation
from descend.runtime.seeds import forked_rng
from descend.train.events import EvaluationView, Event, StepView
from descend.train.interruption import interruptible, raise_if_stop_requested
from descend.train.memory import retry_on_oom
from descend.train.objective import Totals
from descend.train.optional_classes import is_own_optimizer, is_phased_optimizer, is_rule, is_sharded_optimizer
from descend.train.progress import Mode

if TYPE_CHECKING:
    from descend.train.events import RunView
    from descend.train.run import Run

__all__ = ["averaged", "evaluate", "leave_averages"]


@torch.no_grad()
def evaluate(run: Run, mode: Mode) -> dict[str, float]:
    """Objective and metrics over every sample of `mode`, each counted once whatever the size of a mini-batch.

    Returns:
        "objective" and each metric by name.

    Raises:
        Stopped: a signal asked it to stop; a run that continues evaluates again from the beginning.
    """
    state, total, seen_by = run.state, run.data[mode].num_samples, run.views.of_run()
    step = state.step
    run.callbacks.fire(
        Event.BEFORE_EVALUATION, EvaluationView(mode, state.epochs_done, step, seen_by, samples=(0, total))
    )
    run.strategy.synchronize(f"the beginning of {mode} at step {step}")
    began = run.communicator.now()
    with averaged(run.optimizer), run.strategy.evaluating(), forked_rng(run.communicator.device):
        totals, samples, times = _measure(run, mode, seen_by)
        penalty = run.task.penalty()
        totals = totals.over(run.communicator)
        values = totals.values(run.task.computed) | run.external_metrics()
    seconds = run.communicator.now() - began
    state.evaluation_seconds[mode] = max(seconds, state.evaluation_seconds.get(mode, 0.0))
    if penalty is not None:
        values["objective"] += float(penalty)
    run.history.record(mode, values, samples, seconds, totals.is_empty)
    after = EvaluationView(
        mode, state.epochs_done, step, seen_by, values, run.task.units, (samples, total), seconds, tuple(times)
    )
    run.callbacks.fire(Event.AFTER_EVALUATION, after)
    return values


def averaged(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
    """Within this block parameters are those to evaluate, where the optimizer's rule trains at another point."""
    if is_own_optimizer(optimizer) or is_sharded_optimizer(optimizer) or is_phased_optimizer(optimizer):
        return optimizer.averaged()
    return contextlib.nullcontext()


def leave_averages(optimizer: torch.optim.Optimizer) -> None:
    """Put the parameters to evaluate in place for good, where the optimizer's rule trains at another point."""
    rules = [rule for group in optimizer.param_groups if is_rule(rule := group.get("rule"))]
    if not rules:
        return
    from descend.optim.engine.evaluation import averages

    if not any(averages(rule) for rule in rules):
        return
    with averaged(optimizer):
        kept = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
    with torch.no_grad():
        for p, value in kept:
            p.copy_(value)


def _measure(run: Run, mode: Mode, seen_by: RunView) -> tuple[Totals, int, list[float]]:
    """Sums over all samples of a mode, how many there were, and how long each mini-batch took."""
    context, module = run.state.contexts[mode], run.task.module
    totals, seen, times, clock = Totals(), 0, list[float](), run.communicator.now()
    was_training = module.training
    module.eval()
    try:
        with contextlib.closing(run.data[mode].epoch(0)) as batches:
            for batch in interruptible(run, batches):
                number = context.step + len(times) + 1
                step = StepView(
                    number,
                    run.state.epochs_done,
                    batch,
                    module,
                    run.optimizer,
                    None,
                    seen_by,
                    run.activations,
                    mode,
                )
                _evaluate_batch(run, step, totals)
                seen += batch.size
                last = ", the last" if batch.last else ""
                run.strategy.synchronize(f"{mode} batch {batch.step} of {batch.size} samples{last}")
                now = run.communicator.now()
                times.append(now - clock)
                clock = now
                raise_if_stop_requested(run)
    finally:
        module.train(was_training)
        run.activations.clear()
    if mode is not Mode.TRAIN:  # whose context says where training stands
        context.step += len(times)
        context.samples += seen
        context.epoch += 1
    return totals, seen, times


def _evaluate_batch(run: Run, step: StepView, totals: Totals) -> None:
    """Add the sums of one mini-batch to `totals`."""
    batch = run.state.batches[step.mode] = step.batch
    run.callbacks.fire(Event.BEFORE_EVALUATION_STEP, step)

    def attempt() -> Totals:
        sums = Totals()
        seed_evaluation(run.seed, step.mode.value, run.state.step, batch.step, batch.position)
        with run.activations.attached():
            for micro_batch in run.strategy.micro_batches(batch, training=False):
                sums.add_losses(run.task.losses(micro_batch))
        return sums

    totals.join(retry_on_oom(run, len(batch.ids), 1, attempt, undo=lambda: None))
    run.communicator.status.steps += 1
    run.callbacks.fire(Event.AFTER_EVALUATION_STEP, step)
    run.activations.clear()
