"""The weights of many modules of one architecture as one stack, and a training step of all of them.

    held        what a step changes: weights of each update end to end, entries of its rule's state, buffers
    fixed       what it only reads: data, frozen weights, and decays and constants of rules, which differ between trials
    given       inputs of a step: rows of the data, learning rates, the number of the update, dropout masks

A step is a pure function of these. Traced once into plain operations, it serves all stacks of the same form.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.func import functional_call, stack_module_state, vmap

from descend.data import orders
from descend.optim.schedules import Constant
from descend.study.running.optimizer import schedule_of
from descend.study.running.scores import Scorer, StackScores
from descend.study.running.stacked_update import (
    StackLayout,
    end_to_end,
    form_of,
    one_row_per_trial,
    trace_key,
    update_one_trial,
    updates_of,
)
from descend.study.running.traced import traced
from descend.torch_private import grad_and_value, quick_checks
from descend.train.patches.dropout import ReproducibleDropout, philox_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from descend.study.running.trial import Trial
    from descend.study.task import StudyTask

__all__ = [
    "Draw",
    "SampleOrder",
    "Stack",
    "SuppliedDropout",
    "UpdateNumbers",
    "learning_rates",
    "random_words",
]

_BLOCK = 256  # updates whose numbers are taken from tables at a time
_WORTH_A_TRACE = 10  # steps, or looks at samples, of one shape from which a trace takes less time than it saves


class _PreparedStep(NamedTuple):
    """A step for batches of some number of rows."""

    call: Callable[..., list[Tensor]]
    draws: tuple[Draw, ...]


class Stack:
    """All trials in the middle of their runs.

    Args:
        task: A prepared task.
        trials: Of one arm, batch size, number of steps and workload.
        looks: How often their scores will be taken.

    Attributes:
        trials: Of the stack.
        held: What a step changes, which it may write over.
        failed_at: The first update of each trial that was not finite, or 0.

    Raises:
        ConfigurationError: see `updates_of`.
    """

    def __init__(self, task: StudyTask, trials: Sequence[Trial], looks: int = 2) -> None:
        modules = [task.module(trial.seed) for trial in trials]
        task = task.beside(modules[0])
        self.trials = trials
        self.updates = updates_of(trials, modules)
        self.scorer = Scorer(task)
        device = task.train[0].device
        self.failed_at = torch.zeros(len(trials), dtype=torch.int64, device=device)
        self._data = task.train
        self._template = modules[0]
        params, buffers = stack_module_state(cast("list[Any]", modules))
        trained = {name for update in self.updates for name in update.names}
        self._frozen = {name: p.detach() for name, p in params.items() if name not in trained}
        self._layout, self.held = StackLayout.begin(self.updates, params, buffers)
        self._numbers = UpdateNumbers(trials, device)
        self._order = SampleOrder(trials, len(task.train[0]), device)
        self._fixed = [*task.train, *self._frozen.values()]
        self._fixed += [x for one in self.updates for x in (one.decay, one.lr_mult, *one.constants.values())]
        self._traces = task.traces
        self._dropout = SuppliedDropout(self._template)
        self._steps: dict[int, _PreparedStep] = {}
        self._scores = StackScores(
            self.scorer,
            self._template,
            self._layout,
            self._frozen,
            task.traces,
            worth_a_trace=lambda parts: parts * looks >= _WORTH_A_TRACE,
        )

    def _loss(
        self, params: dict[str, Tensor], frozen: dict[str, Tensor], buffers: dict[str, Tensor], *given: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Of one trial: the loss, and the buffers as the forward pass left them."""
        rows, self._dropout.given = given[: len(self._data)], list(given[len(self._data) :])
        self._dropout.begin(0, len(rows[-1]), 0)
        written = {name: buffer.clone() for name, buffer in buffers.items()}
        output = functional_call(self._template, {**params, **frozen, **written}, rows[:-1])
        ratio = self.scorer.loss.ratio(output, [rows[-1]], len(rows[-1]))
        return ratio.numerator / ratio.denominator, written

    def _step(self, *all_of_it: Tensor) -> list[Tensor]:
        """From `held`, `fixed` and `given` to what is held after the step, gradients, and their sums."""
        rest = iter(all_of_it)
        weights, states, buffers = self._layout.split([next(rest) for _ in self.held])
        data = [next(rest) for _ in self._data]
        frozen = {name: next(rest) for name in self._frozen}
        inputs = [(next(rest), next(rest), {name: next(rest) for name in one.constants}) for one in self.updates]
        index, rate, number, *draws = rest
        rows = [part.index_select(0, index.flatten()).unflatten(0, index.shape) for part in data]
        compute = vmap(grad_and_value(self._loss))
        grads, (_, written) = compute(self._layout.by_name(weights), frozen, buffers, *rows, *draws)
        after: list[Tensor] = []
        entries: list[Tensor] = []
        flat: list[Tensor] = []
        for update, kind, p, state, own in zip(
            self.updates, self._layout.state_types, weights, states, inputs, strict=True
        ):
            decay, lr_mult, constants = own
            g = end_to_end([grads[name] for name in update.names])
            flat.append(one_row_per_trial(g))
            numbers = {"lr": rate * lr_mult, "decay": decay, "t": number, **constants}
            new, changed = vmap(functools.partial(update_one_trial, update, kind))(p, g, state, numbers)
            after.append(new)
            entries.extend(changed.values())
        return [
            *after,
            *entries,
            *(written[name] for name in self._layout.buffers),
            *flat,
            functools.reduce(torch.add, [x.sum(1) for x in flat]),
        ]

    def step(self, number: int) -> None:
        """Update number `number`, from 1."""
        index = self._order.rows(number - 1)
        rows = index.shape[1]
        if rows not in self._steps:
            self._prepare(index)
        given = [index, *self._numbers.of(number)]
        step = self._steps[rows]
        given += [random_words(draw, self.trials, number, self._data[0].device) for draw in step.draws]
        with torch.no_grad():
            made = step.call(*self.held, *self._fixed, *given)
        self.held = made[: len(self.held)]
        # One number tells whether to look at all; on a GPU to ask for it takes longer than to look.
        if not (self.failed_at.is_cpu and self._are_finite(made[-1])):
            self._note_failures(made[len(self.held) : -1], number)

    def _are_finite(self, sums: Tensor) -> bool:
        """Whether the sums of gradients are, of all trials that have not failed."""
        return math.isfinite(sums.sum().item()) or bool((sums.isfinite() | (self.failed_at > 0)).all())

    def trace(self) -> None:
        """Have everything traced that a run traces, so that stacks in forks of this process need not."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # of what vmap calls once for each trial
            for step in self._order.first_steps(self.trials[0].steps):
                index = self._order.rows(step)
                if index.shape[1] not in self._steps:
                    self._prepare(index)
            self._scores.trace(self.held)

    def _prepare(self, index: Tensor) -> None:
        """How steps of so many rows are done: by operations that are traced where there are enough such steps."""
        rows = index.shape[1]
        draws = tuple(self._find_draws(index))
        if self._order.count(rows, self.trials[0].steps) < _WORTH_A_TRACE:
            self._steps[rows] = _PreparedStep(self._plainly, draws)
            return
        example = [*self.held, *self._fixed, index, *self._numbers.of(1)]
        example += [random_words(draw, self.trials, 1, self._data[0].device) for draw in draws]
        form = (*self._form, rows, *draws, *trace_key(example))
        if form not in self._traces:
            self._traces[form] = traced(self._plainly, *example, spent=len(self.held), fused=True)
        self._steps[rows] = _PreparedStep(self._traces[form], draws)

    @property
    def _form(self) -> tuple[Any, ...]:
        """What a trace depends on beside the shapes of its tensors: the kinds of layers, and numbers of the rules."""
        return (repr(self._template), *(form_of(update) for update in self.updates))

    def _plainly(self, *all_of_it: Tensor) -> list[Tensor]:
        """A step with the random layers of the module taken over."""
        self._template.train()
        with self._dropout, quick_checks():
            return self._step(*all_of_it)

    def _note_failures(self, gradients: Sequence[Tensor], number: int) -> None:
        """Note the trials whose gradients are not finite; finite ones may have a sum that is not."""
        finite = torch.stack([g.isfinite().all(1) for g in gradients]).all(0)
        self.failed_at = torch.where((self.failed_at == 0) & ~finite, number, self.failed_at)

    def _find_draws(self, index: Tensor) -> list[Draw]:
        """What the random layers of one module ask for in a forward pass of so many rows."""
        self._dropout.asked.clear()
        self._template.train()
        weights, _, buffers = self._layout.split(self.held)
        first = [
            {name: x[0] for name, x in part.items()} for part in (self._layout.by_name(weights), self._frozen, buffers)
        ]
        with torch.no_grad(), self._dropout:
            self._loss(first[0], first[1], first[2], *(part[index[0]] for part in self._data))
        return list(self._dropout.asked)

    def look(self, *, test: bool = False) -> dict[str, dict[str, Tensor]]:
        """Scores of all trials, (trials,) each; with `test` those on the test samples alone."""
        return self._scores.take(self.held, test=test)


class Draw(NamedTuple):
    """One draw of a random layer in a forward pass.

    Attributes:
        layer: Its name in the module.
        call: Number of its call in the forward pass.
        rows: Samples.
        width: Words a sample.
    """

    layer: str
    call: int
    rows: int
    width: int


class SuppliedDropout(ReproducibleDropout):
    """Random layers whose words are passed as tensors, so that every trial of a stack has its own.

    Attributes:
        asked: The draws of a forward pass, in its order.
        given: Their words, (rows, width) each; without them words are zeros, and the draw is noted in `asked`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, seed=0)
        self.asked: list[Draw] = []
        self.given: list[Tensor] = []

    def number_of_call(self, name: str) -> int:
        """See `ReproducibleDropout.number_of_call`; torch.vmap allows no draw, and repeats no call."""
        calls = self.calls.setdefault(name, {})
        return calls.setdefault(len(calls), len(calls) + 1)

    def words(self, name: str, call: int, first: int, rows: int, device: torch.device) -> Callable[[int], Tensor]:
        """See `ReproducibleDropout.words`."""

        def drawn(width: int) -> Tensor:
            if self.given:
                return self.given.pop(0)
            self.asked.append(Draw(name, call, rows, width))
            return torch.zeros(rows, width, dtype=torch.int64, device=device)

        return drawn


def random_words(draw: Draw, trials: Sequence[Trial], number: int, device: torch.device) -> Tensor:
    """The words of a draw in update `number`, from 1, of each trial, (trials, rows, width)."""
    layer, call, rows, width = draw
    words = [philox_words(trial.seed, number - 1, layer, call, 0, rows, device, width) for trial in trials]
    return torch.stack([one.to(torch.int64) for one in words])


def learning_rates(trials: Sequence[Trial]) -> np.ndarray[Any, Any]:
    """The learning rate of each trial in each step, (steps, trials)."""
    schedules = [schedule_of(trial.configuration, trial.steps) for trial in trials]
    if all(isinstance(schedule, Constant) for schedule in schedules):
        return np.tile([schedule(0) for schedule in schedules], (trials[0].steps, 1))
    return np.array([[schedule(step) for schedule in schedules] for step in range(trials[0].steps)])


class UpdateNumbers:
    """Learning rates and number of each update, taken from their tables many at a time, which is quicker.

    Args:
        trials: Of one number of steps.
        device: Where they are put.
    """

    def __init__(self, trials: Sequence[Trial], device: torch.device) -> None:
        self._rates = torch.from_numpy(learning_rates(trials)).to(device)
        numbers = torch.arange(1, trials[0].steps + 1, dtype=torch.float64, device=device)
        self._numbers = numbers[:, None].expand_as(self._rates)
        self._block = -1
        self._rows: list[tuple[Tensor, Tensor]] = []

    def of(self, number: int) -> tuple[Tensor, Tensor]:
        """Those of update `number`, from 1; (trials,) each."""
        block, place = divmod(number - 1, _BLOCK)
        if block != self._block:
            part = slice(block * _BLOCK, (block + 1) * _BLOCK)
            self._block = block
            self._rows = list(zip(self._rates[part].unbind(), self._numbers[part].unbind(), strict=True))
        return self._rows[place]


class SampleOrder:
    """Which samples each trial sees in each step: those that it would see alone.

    Args:
        trials: Of one batch size.
        samples: Of the training data.
        device: Where the numbers of samples are put.
    """

    def __init__(self, trials: Sequence[Trial], samples: int, device: torch.device) -> None:
        self._device = device
        self._seeds = [trial.seed for trial in trials]
        self._size = trials[0].batch_size
        self._samples = samples
        self._epoch = -1
        self._batches: list[Tensor] = []

    def rows(self, step: int) -> Tensor:
        """Numbers of the samples of step `step`, from 0; (trials, samples of the batch)."""
        per_epoch = -(-self._samples // self._size)
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            drawn = torch.from_numpy(orders(self._seeds, epoch, self._samples)).to(self._device)
            self._epoch, self._batches = epoch, [part.contiguous() for part in drawn.split(self._size, dim=1)]
        return self._batches[place]

    def first_steps(self, steps: int) -> list[int]:
        """The first step of each number of samples among so many steps, from 0."""
        last = -(-self._samples // self._size) - 1
        return [0, last] if self._samples % self._size and 0 < last < steps else [0]

    def count(self, rows: int, steps: int) -> int:
        """How many of the first `steps` steps have so many rows."""
        epochs = steps // -(-self._samples // self._size)
        left = self._samples % self._size
        if rows == left and rows != self._size:
            return epochs
        return steps - (epochs if left else 0)
