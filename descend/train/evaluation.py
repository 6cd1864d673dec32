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
from descend.train.module_state import modes_kept
from descend.train.objective import Totals
from descend.train.optional_classes import is_averaging, is_own_optimizer, is_phased_optimizer, is_sharded_optimizer
from descend.train.progress import Mode

if TYPE_CHECKING:
    from descend.train.events import RunView
    from descend.train.run import Run

__all__ = ["averaged", "averages_of", "evaluate", "external_metrics"]


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
    before = EvaluationView(mode, state.epochs_done, step, seen_by, samples=(0, total))
    with run.control.evaluated.evaluating(before):
        run.strategy.synchronize(f"the beginning of {mode} at step {step}")
        began = run.communicator.now()
        run.control.evaluated.put_in(averages_of(run))
        with run.strategy.evaluating(), forked_rng(run.communicator.device):
            values, is_empty, samples, times = _measured(run, mode, seen_by)
            values |= external_metrics(run)
            if mode is not Mode.TOURNAMENT:
                values |= _of_other_averages(run, mode, seen_by)
        seconds = run.communicator.now() - began
        state.evaluation_seconds[mode] = max(seconds, state.evaluation_seconds.get(mode, 0.0))
        run.history.record(mode, values, samples, seconds, is_empty)
        after = EvaluationView(
            mode, state.epochs_done, step, seen_by, values, run.task.units, (samples, total), seconds, tuple(times)
        )
        run.control.evaluated.end(after)
    return values


def _of_other_averages(run: Run, mode: Mode, seen_by: RunView) -> dict[str, float]:
    """Objective and metrics of the averages behind the first one, as "NAME/objective"; callbacks do not see these."""
    found: dict[str, float] = {}
    for label, weights in run.control.evaluated.others().items():
        with run.control.evaluated.holding(weights):
            values, *_ = _measured(run, mode, seen_by, watched=False)
        found |= {f"{label}/{name}": value for name, value in values.items()}
    return found


def _measured(
    run: Run, mode: Mode, seen_by: RunView, watched: bool = True
) -> tuple[dict[str, float], bool, int, list[float]]:
    """Values over all samples of a mode, whether none counted, how many there were, and how long mini-batches took."""
    totals, samples, times = _measure(run, mode, seen_by, watched)
    penalty = run.task.penalty()
    totals = totals.over(run.communicator)
    values = totals.values(run.task.computed)
    if penalty is not None:
        values["objective"] += float(penalty)
    return values, totals.is_empty, samples, times


def external_metrics(run: Run) -> dict[str, float]:
    """Metrics that the module does not compute, the same on all ranks."""
    return run.communicator.on_rank_zero(lambda: dict(run.task.external_metrics(run.store.place)))


def averaged(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
    """Within this block parameters are those to evaluate, where the optimizer's rule trains at another point."""
    if is_own_optimizer(optimizer) or is_sharded_optimizer(optimizer) or is_phased_optimizer(optimizer):
        return optimizer.averaged()
    return contextlib.nullcontext()


@torch.no_grad()
def averages_of(run: Run) -> dict[str, torch.Tensor]:
    """The parameters to evaluate by name, where the optimizer's rule trains at another point; nothing elsewhere, nor
    once a callback has put those to evaluate in place for good."""
    if run.control.evaluated.is_final:
        return {}
    groups = [group for group in run.optimizer.param_groups if is_averaging(group.get("rule"))]
    own = {id(p) for group in groups for p in group["params"]}
    with averaged(run.optimizer) if own else contextlib.nullcontext():
        return {name: p.detach().clone() for name, p in run.task.module.named_parameters() if id(p) in own}


def _measure(run: Run, mode: Mode, seen_by: RunView, watched: bool) -> tuple[Totals, int, list[float]]:
    """Sums over all samples of a mode, how many there were, and how long each mini-batch took.

    Args:
        run: The run.
        mode: What is measured.
        seen_by: The run as callbacks see it.
        watched: Whether callbacks see the mini-batches, and the counts of the mode go on.
    """
    context, module = run.state.contexts[mode], run.task.module
    totals, seen, times, clock = Totals(), 0, list[float](), run.communicator.now()
    with modes_kept(module), contextlib.closing(run.data[mode].epoch(0)) as batches:
        module.eval()
        try:
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
                _evaluate_batch(run, step, totals, watched)
                seen += batch.size
                last = ", the last" if batch.last else ""
                run.strategy.synchronize(f"{mode} batch {batch.step} of {batch.size} samples{last}")
                now = run.communicator.now()
                times.append(now - clock)
                clock = now
                raise_if_stop_requested(run)
        finally:
            run.activations.clear()
    if watched and mode is not Mode.TRAIN:  # whose context says where training stands
        context.step += len(times)
        context.samples += seen
        context.epoch += 1
    return totals, seen, times


def _evaluate_batch(run: Run, step: StepView, totals: Totals, watched: bool) -> None:
    """Add the sums of one mini-batch to `totals`."""
    batch = run.state.batches[step.mode] = step.batch
    if watched:
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
    if watched:
        run.callbacks.fire(Event.AFTER_EVALUATION_STEP, step)
    run.activations.clear()
