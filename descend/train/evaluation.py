"""A pass over samples that are not trained on, with the weights that evaluations see."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from descend.errors import ConfigurationError
from descend.runtime import seed_evaluation
from descend.runtime.dtensor import copy_into, is_sharded, local_shard
from descend.runtime.seeds import forked_rng
from descend.torch_private import version_counter
from descend.train.events import EvaluationView, Event, StepView
from descend.train.micro_batch import retry_on_oom
from descend.train.module_state import bits_sum, modes_kept, tensors_of
from descend.train.objective import Totals
from descend.train.optional_classes import is_averaging, is_own_optimizer, is_phased_optimizer, is_sharded_optimizer
from descend.train.progress import Mode
from descend.train.stop_signal import interruptible, raise_if_stop_requested

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from descend.train.callback import Callback
    from descend.train.events import RunView
    from descend.train.run import Run

__all__ = [
    "AveragingCallback",
    "EvaluatedWeights",
    "averaged",
    "averages_of",
    "evaluate",
    "external_metrics",
    "write_weights",
]


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


# ---- the weights that evaluations see, where callbacks put others in place of those in training
#
#     evaluating  around an evaluation: afterwards the weights in training are back to the bit, also after an error
#     put_in      keeps the weights in training, once per evaluation, and writes others over them
#
# A callback may evaluate while another evaluation is under way, so what is kept is a stack. Where a run has several
# averages, the first one in the list of callbacks is put in; the others are measured beside it, each under its name.


@runtime_checkable
class AveragingCallback(Protocol):
    """A callback that keeps an average of the weights.

    Attributes:
        average: By name; None where nothing is averaged yet.
    """

    average: dict[str, torch.Tensor] | None

    @property
    def label(self) -> str:
        """By what the rows of a run call it."""
        ...

    def take_in(self, finished: int) -> None:
        """Average the weights after so many complete epochs, before an evaluation puts others in their place."""
        ...


class EvaluatedWeights:
    """Keeps the weights in training while callbacks put others in their place.

    Args:
        run: The run.

    Attributes:
        is_final: Whether training is over and a callback has put the weights to evaluate into the module for good.
    """

    def __init__(self, run: Run) -> None:
        self._run, self.is_final = run, False
        self._averages = [one for one in run.callbacks.all if isinstance(one, AveragingCallback)]
        # Of each evaluation under way, the outermost first: what its hooks have done, in order. Tensors are those that
        # were there before others were put in; a callback of a user's own is one that puts back what it found.
        self._done: list[list[Callback | dict[str, torch.Tensor]]] = []

    # ---- averages

    def check_names(self) -> None:
        """Refuse two averages of one name.

        Raises:
            ConfigurationError: there are two.
        """
        labels = [one.label for one in self._averages]
        for label, one in zip(labels, self._averages, strict=True):
            if labels.count(label) > 1:
                raise ConfigurationError(
                    f"{type(one).__name__}: two averages of this run are called '{label}': give one of them a name of "
                    f"its own, as in {type(one).__name__}(..., name='slow')"
                )

    def place(self, average: AveragingCallback) -> int:
        """The place of an average among those of the run, from 0; the first one is that of the run."""
        return next(place for place, one in enumerate(self._averages) if one is average)

    def others(self) -> dict[str, dict[str, torch.Tensor]]:
        """The averages behind the first one that have begun, by their names."""
        return {one.label: one.average for one in self._averages[1:] if one.average is not None}

    @property
    def other_names(self) -> list[str]:
        """The names of the averages behind the first one."""
        return [one.label for one in self._averages[1:]]

    def not_begun(self) -> list[AveragingCallback]:
        """The averages in which nothing is yet."""
        return [one for one in self._averages if one.average is None]

    # ---- an evaluation

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers in training by name, also while others are in their place."""
        found = self._tensors()
        for done in reversed(self._done):
            for one in reversed(done):
                found.update(one if isinstance(one, dict) else {})
        return found

    @contextmanager
    def evaluating(self, view: EvaluationView) -> Generator[None]:
        """Context manager around an evaluation: calls before_evaluation, and takes back what that did to the weights
        where after_evaluation is not called, because of an error."""
        for average in self._averages:
            average.take_in(view.epoch)
        with self._restored() as done:
            ends = {id(callback) for callback, _ in self._run.callbacks.listening(Event.AFTER_EVALUATION)}
            for callback, hook in self._run.callbacks.listening(Event.BEFORE_EVALUATION):
                if _is_ours(callback) or id(callback) not in ends:
                    hook(view)
                    continue
                if callback.replaces_weights:
                    done.append({name: tensor.detach().clone() for name, tensor in self._tensors().items()})
                sums = self._sums()
                hook(view)
                if callback.replaces_weights or self._sums() != sums:
                    done.append(callback)
            yield

    def end(self, view: EvaluationView) -> None:
        """Call after_evaluation: of those that look on, of those that put weights in, the last one first, and of those
        that save."""
        hooks = self._run.callbacks.listening(Event.AFTER_EVALUATION)
        done = self._done[-1]
        nested = {id(one): one for one in done if not isinstance(one, dict)}
        for callback, hook in hooks:
            if not callback.saves and id(callback) not in nested:
                hook(view)
        while done:
            if isinstance(one := done[-1], dict):
                write_weights(one, self._tensors())
            else:
                next(hook for callback, hook in hooks if callback is one)(view)
            done.pop()
        for callback, hook in hooks:
            if callback.saves and id(callback) not in nested:
                hook(view)

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Generator[None]:
        """Within this block the module holds these weights; afterwards those that it holds now, to the same bits."""
        with self._restored():
            self.put_in(weights)
            yield

    @contextmanager
    def _restored(self) -> Generator[list[Callback | dict[str, torch.Tensor]]]:
        done: list[Any] = []
        self._done.append(done)
        try:
            yield done
        finally:
            self._done.pop()
            for one in reversed(done):
                if isinstance(one, dict):
                    write_weights(one, self._tensors())

    def put_in(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write other parameters and buffers into the module until the evaluation under way is over.

        Args:
            weights: By name, whole or sharded as the module's are; those that are not named stay.

        Raises:
            ConfigurationError: no evaluation is under way.
        """
        if not self._done:
            raise ConfigurationError(
                "put_in was called outside of an evaluation, after which the weights are put back: call it in "
                "before_evaluation"
            )
        tensors, done = self._tensors(), self._done[-1]
        if not (done and isinstance(done[-1], dict)):
            done.append({})
        kept: Any = done[-1]
        new = [name for name in weights if name in tensors and name not in kept]
        kept.update({name: tensors[name].detach().clone() for name in new})
        write_weights(weights, tensors)

    @contextmanager
    def finishing(self) -> Generator[None]:
        """Context manager around after_training, in which callbacks may put weights in for good."""
        before = self._versions()
        yield
        self.is_final = self._versions() != before

    def _versions(self) -> list[int]:
        return [version_counter(p) for p in self._run.task.module.parameters()]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return tensors_of(self._run.task.module)

    def _sums(self) -> list[int]:
        """Sums of bits, by which a write is noticed however it was made."""
        sums = [bits_sum(local_shard(tensor)).cpu() for tensor in self._tensors().values()]
        return torch.stack(sums).tolist() if sums else []


def _is_ours(callback: Callback) -> bool:
    """Whether a callback is one of this package, which writes weights by `put_in` alone."""
    return type(callback).__module__.partition(".")[0] == __name__.partition(".")[0]


@torch.no_grad()
def write_weights(values: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy values by name, whole or sharded as the tensors are; names that `tensors` lacks are left out."""
    for name, value in values.items():
        if name in tensors and is_sharded(value):
            local_shard(tensors[name]).copy_(local_shard(value))
        elif name in tensors:
            copy_into(tensors[name], value)
