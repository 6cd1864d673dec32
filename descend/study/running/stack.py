"""The weights of many modules of one architecture as one stack, and a training step of all of them.

    held        what a step changes: weights of each update end to end, entries of its rule's state, buffers
    fixed       what it only reads: data, frozen weights, and decays and constants of rules, which differ between trials
    given       inputs of a step: rows of the data, learning rates, the number of the update, dropout masks

A step is a pure function of these. Traced once into plain operations, it serves all stacks of the same form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from descend.data import orders
from descend.errors import ConfigurationError
from descend.optim.engine import plain
from descend.optim.engine.settings import OPTIONS, GroupSettings, rule_fields
from descend.optim.rules.base import Rule
from descend.optim.schedules import Constant
from descend.study.running.optimizer import schedule_of, shares
from descend.study.running.scores import Scorer
from descend.study.running.traced import traced
from descend.train.patches.dropout import ReproducibleDropout, philox_words

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from torch import Tensor, nn

    from descend.study.running.trial import Trial
    from descend.study.task import StudyTask

__all__ = ["Stack", "slow_in_silence"]

_ELEMENTWISE = ("norm", "total", "noise")  # a rule that asks for one of these looks at whole tensors
_WORTH_A_TRACE = 64  # steps of one batch size from which a trace is quicker than dispatching each step


@contextlib.contextmanager
def slow_in_silence() -> Generator[None]:
    """Without what `vmap` says of operations that it calls once for each trial: ways are chosen by their time."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "There is a performance drop because we have not yet implemented the batching"
        )
        yield


class Update(NamedTuple):
    """One update of parameters with the same options in every trial: one tensor, or all of them end to end.

    Attributes:
        names: Of the weights.
        rule: Of the first trial; what differs between trials stands in `constants`.
        constants: Numbers of the rule by name, (trials,), where they differ.
        options: Of the engine, the same for all trials.
        decays: Whether any of them decays.
        decay: (trials,).
        lr_mult: (trials,).
    """

    names: tuple[str, ...]
    rule: Rule
    constants: dict[str, Tensor]
    options: dict[str, Any]
    decays: bool
    decay: Tensor
    lr_mult: Tensor


def updates_of(trials: Sequence[Trial], modules: Sequence[nn.Module]) -> list[Update]:
    """What is done to the weights in each step, the settings of all trials brought together.

    Raises:
        ConfigurationError: they differ in something that is no number, or a rule needs more than a stack can give.
    """
    each = [shares(trial.configuration, module) for trial, module in zip(trials, modules, strict=True)]
    if len({tuple(share.names for share in listed) for listed in each}) > 1:
        raise ConfigurationError("trials group their weights in different ways")
    device = next((p.device for p in modules[0].parameters()), torch.device("cpu"))
    updates: list[Update] = []
    for together in zip(*each, strict=True):
        first = together[0]
        if "noise" in first.rule.needs or first.rule.whole_tensor:
            raise ConfigurationError(f"{type(first.rule).__name__} works on one tensor at a time")
        options = [{**OPTIONS, **share.options} for share in together]
        decay, lr_mult = (
            _column([float(one.pop(name)) for one in options], device) for name in ("weight_decay", "lr_mult")
        )
        if any(one != options[0] for one in options):
            raise ConfigurationError("trials differ in an option that is no number")
        constants = _constants([share.rule for share in together], device)
        whole = not any(name in first.rule.needs for name in _ELEMENTWISE)
        for names in [first.names] if whole else [(name,) for name in first.names]:
            decays = bool(decay.any())
            updates.append(Update(names, first.rule, constants, options[0], decays, decay, lr_mult))
    return updates


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device=device)


def _constants(rules: Sequence[Rule], device: torch.device) -> dict[str, Tensor]:
    """The numbers of a rule in which trials differ."""
    if len({type(rule) for rule in rules}) > 1:
        raise ConfigurationError("trials have different rules")
    found: dict[str, Tensor] = {}
    for name, value in rule_fields(rules[0]).items():
        values = [rule_fields(rule)[name] for rule in rules]
        if all(one == value for one in values):
            continue
        if not all(isinstance(one, float) and one for one in values):  # 0 often switches a part of a rule off
            raise ConfigurationError(f"trials differ in '{name}', which is no number above 0 in all of them")
        found[name] = _column(values, device)
    return found


def _form_of(update: Update) -> tuple[Any, ...]:
    """What stands in the trace of an update as a number or a decision, and not as a tensor."""
    own = {name: value for name, value in rule_fields(update.rule).items() if name not in update.constants}
    options = sorted(update.options.items())
    return (update.names, type(update.rule), repr(own), *update.constants, repr(options), update.decays)


def _with(rule: Rule, constants: dict[str, Tensor]) -> Rule:
    """The rule with other numbers, unchecked: they were checked one by one."""
    made = object.__new__(type(rule))
    for field in dataclasses.fields(cast("Any", rule)):
        object.__setattr__(made, field.name, constants.get(field.name, getattr(rule, field.name)))
    return made


def _one_update(
    update: Update, kind: Any, p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """What one trial does to some of its weights; `vmap` makes it what all do.

    Args:
        update: Which.
        kind: Class of the rule's state, None for a rule without.
        p: Weights.
        g: Their gradient.
        state: Entries of the rule's state that are not None.
        numbers: `lr`, `decay`, `t` and the rule's constants, 0-d.
    """
    options = update.options
    settings = GroupSettings(
        rule=_with(update.rule, {name: numbers[name] for name in update.constants}),
        lr=0.0,  # handed in as a tensor below
        decay=float(update.decays),
        decay_form=options["decay"],
        rescale=-options["rescale_grad"] if options["maximize"] else options["rescale_grad"],
        clip=options["clip_value"],
        scaled=options["scaled"],
    )
    scalars = {"t": numbers["t"], "lr": numbers["lr"], "decay": numbers["decay"]}
    scalars["scaled"] = torch.tensor(float(options["scaled"]), dtype=torch.float64)
    provided = {"norm": functools.partial(plain.norm, whole=p), "total": functools.partial(plain.total, whole=p)}
    new, after = plain.update(g, p, _state(kind, state), settings, scalars, provided)
    return new, {} if after is None else {k: v for k, v in after._asdict().items() if v is not None}


def _state(kind: Any, entries: dict[str, Tensor]) -> Any:
    return None if kind is None else kind(**{name: entries.get(name) for name in kind._fields})


class _Draws(ReproducibleDropout):
    """What random layers draw, as tensors that are handed in, so that every trial has draws of its own.

    Attributes:
        asked: Layer, call, rows and width of each draw of a forward pass, in its order.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, seed=0)
        self.asked: list[tuple[str, int, int, int]] = []
        self.given: list[Tensor] = []  # (rows, width) each; without them zeros are given, and the call is noted

    def words(self, name: str, call: int, first: int, rows: int, device: torch.device) -> Callable[[int], Tensor]:
        """See `Masks.words`."""

        def drawn(width: int) -> Tensor:
            if self.given:
                return self.given.pop(0)
            self.asked.append((name, call, rows, width))
            return torch.zeros(rows, width, dtype=torch.int64, device=device)

        return drawn


class Stack:
    """All trials in the middle of their runs.

    Args:
        task: A prepared task.
        trials: Of one arm, batch size, number of steps and workload.

    Raises:
        ConfigurationError: see `updates_of`.
    """

    def __init__(self, task: StudyTask, trials: Sequence[Trial]) -> None:
        modules = [task.module(trial.seed) for trial in trials]
        self.trials = trials
        self.updates = updates_of(trials, modules)
        self.scorer = Scorer(task)
        device = task.train[0].device
        self.failed_at = torch.zeros(len(trials), dtype=torch.int64, device=device)
        self._data = task.train
        self._template = modules[0]
        params, buffers = stack_module_state(cast("list[Any]", modules))
        trained = {name for update in self.updates for name in update.names}
        self._shapes = {name: p.shape[1:] for name, p in params.items()}
        self._frozen = {name: p.detach() for name, p in params.items() if name not in trained}
        self._buffers = list(buffers)
        self._kinds: list[Any] = []
        self._entries: list[list[str]] = []
        weights = [_stacked([params[name].detach() for name in update.names]) for update in self.updates]
        states = [x for update, flat in zip(self.updates, weights, strict=True) for x in self._begin(update, flat)]
        self._held = [*weights, *states, *buffers.values()]
        self._rates = torch.from_numpy(_rates(trials)).to(device)
        numbers = torch.arange(1, trials[0].steps + 1, dtype=torch.float64, device=device)
        self._numbers = numbers[:, None].expand_as(self._rates)
        self._order = _Order(trials, len(task.train[0]), device)
        self._fixed = [*task.train, *self._frozen.values()]
        self._fixed += [x for one in self.updates for x in (one.decay, one.lr_mult, *one.constants.values())]
        self._traces = task.traces
        self._draws = _Draws(self._template)
        self._asked: dict[int, list[tuple[str, int, int, int]]] = {}
        self._steps: dict[int, Callable[..., list[Tensor]]] = {}

    def _begin(self, update: Update, weights: Tensor) -> list[Tensor]:
        """Stacked entries of the state before the first update, whose class and names are noted."""
        made: list[Any] = []
        for number, flat in enumerate(weights):
            constants = {name: float(values[number]) for name, values in update.constants.items()}
            made.append(dataclasses.replace(cast("Any", update.rule), **constants).init(flat))
        self._kinds.append(None if made[0] is None else type(made[0]))
        entries = {} if made[0] is None else {k: v for k, v in made[0]._asdict().items() if v is not None}
        self._entries.append(list(entries))
        return [torch.stack([getattr(state, name) for state in made]) for name in entries]

    def _parts(self, held: Sequence[Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]], dict[str, Tensor]]:
        """Weights and state of each update, and buffers."""
        rest = iter(held[len(self.updates) :])
        states = [{name: next(rest) for name in names} for names in self._entries]
        return list(held[: len(self.updates)]), states, dict(zip(self._buffers, rest, strict=True))

    def _by_name(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Trained weights in their shapes."""
        found: dict[str, Tensor] = {}
        for update, flat in zip(self.updates, weights, strict=True):
            parts = _rows(flat).split([self._shapes[name].numel() for name in update.names], dim=1)
            for name, part in zip(update.names, parts, strict=True):
                found[name] = part.reshape(len(flat), *self._shapes[name])
        return found

    def _loss(
        self, params: dict[str, Tensor], frozen: dict[str, Tensor], buffers: dict[str, Tensor], *given: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Of one trial: the loss, and the buffers as the forward pass left them."""
        rows, self._draws.given = given[: len(self._data)], list(given[len(self._data) :])
        self._draws.begin(0, len(rows[-1]), 0)
        written = {name: buffer.clone() for name, buffer in buffers.items()}
        output = functional_call(self._template, {**params, **frozen, **written}, rows[:-1])
        ratio = self.scorer.loss.ratio(output, [rows[-1]], len(rows[-1]))
        return ratio.numerator / ratio.denominator, written

    def _step(self, *all_of_it: Tensor) -> list[Tensor]:
        """From `held`, `fixed` and `given` to what is held after the step, gradients, and their sums."""
        rest = iter(all_of_it)
        weights, states, buffers = self._parts([next(rest) for _ in self._held])
        data = [next(rest) for _ in self._data]
        frozen = {name: next(rest) for name in self._frozen}
        inputs = [(next(rest), next(rest), {name: next(rest) for name in one.constants}) for one in self.updates]
        index, rate, number, *draws = rest
        rows = [part.index_select(0, index.flatten()).unflatten(0, index.shape) for part in data]
        compute = vmap(grad_and_value(self._loss, has_aux=True))
        grads, (_, written) = compute(self._by_name(weights), frozen, buffers, *rows, *draws)
        after: list[Tensor] = []
        entries: list[Tensor] = []
        flat: list[Tensor] = []
        for update, kind, p, state, own in zip(self.updates, self._kinds, weights, states, inputs, strict=True):
            decay, lr_mult, constants = own
            g = _stacked([grads[name] for name in update.names])
            flat.append(_rows(g))
            numbers = {"lr": rate * lr_mult, "decay": decay, "t": number, **constants}
            new, changed = vmap(functools.partial(_one_update, update, kind))(p, g, state, numbers)
            after.append(new)
            entries.extend(changed.values())
        return [
            *after,
            *entries,
            *(written[name] for name in self._buffers),
            *flat,
            torch.stack([x.sum(1) for x in flat]).sum(0),
        ]

    def step(self, number: int) -> None:
        """Update number `number`, from 1."""
        index = self._order.rows(number - 1)
        rows = index.shape[1]
        if rows not in self._steps:
            self._prepare(index)
        given = [index, self._rates[number - 1], self._numbers[number - 1]]
        given += [self._drawn(one, number) for one in self._asked[rows]]
        with torch.no_grad():
            made = self._steps[rows](*self._held, *self._fixed, *given)
        self._held = made[: len(self._held)]
        if not (made[-1].isfinite() | (self.failed_at > 0)).all():  # one number a trial, and rarely all of them
            self._note_failures(made[len(self._held) : -1], number)

    @slow_in_silence()
    def trace(self) -> None:
        """Have everything traced that a run traces, so that stacks in forks of this process need not."""
        form = ("all", *self._form, *_shapes(self._held))
        if form not in self._traces:
            self._prepare(self._order.rows(0))
            self.look()
            self._traces[form] = self._plainly

    def _prepare(self, index: Tensor) -> None:
        """How steps of so many rows are done: by operations that are traced where there are enough such steps."""
        rows = index.shape[1]
        asked = self._asked[rows] = self._find_draws(index)
        if self._order.count(rows, self.trials[0].steps) < _WORTH_A_TRACE:
            self._steps[rows] = self._plainly
            return
        example = [*self._held, *self._fixed, index, self._rates[0], self._numbers[0]]
        example += [self._drawn(one, 1) for one in asked]
        form = (*self._form, rows, *asked, *_shapes(example))
        if form not in self._traces:
            self._traces[form] = traced(self._plainly, *example, spent=len(self._held), fused=True)
        self._steps[rows] = self._traces[form]

    @property
    def _form(self) -> tuple[Any, ...]:
        """What a trace depends on beside the shapes of its tensors: the kinds of layers, and numbers of the rules."""
        return (repr(self._template), *(_form_of(update) for update in self.updates))

    def _plainly(self, *all_of_it: Tensor) -> list[Tensor]:
        """A step with the random layers of the module taken over."""
        self._template.train()
        with self._draws:
            return self._step(*all_of_it)

    def _note_failures(self, gradients: Sequence[Tensor], number: int) -> None:
        """Note the trials whose gradients are not finite; finite ones may have a sum that is not."""
        finite = torch.stack([g.isfinite().all(1) for g in gradients]).all(0)
        self.failed_at = torch.where((self.failed_at == 0) & ~finite, number, self.failed_at)

    def _find_draws(self, index: Tensor) -> list[tuple[str, int, int, int]]:
        """What the random layers of one module ask for in a forward pass of so many rows."""
        self._draws.asked.clear()
        self._template.train()
        weights, _, buffers = self._parts(self._held)
        first = [{name: x[0] for name, x in part.items()} for part in (self._by_name(weights), self._frozen, buffers)]
        with torch.no_grad(), self._draws:
            self._loss(first[0], first[1], first[2], *(part[index[0]] for part in self._data))
        return list(self._draws.asked)

    def _drawn(self, asked: tuple[str, int, int, int], number: int) -> Tensor:
        """What a call of a layer draws in each trial, (trials, rows, width)."""
        name, call, rows, width = asked
        device = self._data[0].device
        return torch.stack(
            [
                philox_words(trial.seed, number - 1, name, call, 0, rows, device, width).to(torch.int64)
                for trial in self.trials
            ]
        )

    def look(self, *, test: bool = False) -> dict[str, dict[str, Tensor]]:
        """Scores of all trials, (trials,) each; with `test` those on the test samples alone."""
        self._template.eval()
        weights, states, buffers = self._parts(self._held)
        params = self._by_name([self._averaged(i, p, states[i]) for i, p in enumerate(weights)])
        params |= self._frozen | buffers

        def all_of(*rows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
            parts = iter(self._scored(list(params), [*params.values(), *rows]))
            return {name: (next(parts), next(parts)) for name in self.scorer.metrics}

        return self.scorer.take_test(all_of) if test else self.scorer.take_all(all_of)

    def _scored(self, names: list[str], given: list[Tensor]) -> list[Tensor]:
        """Numerators and denominators of all metrics, from weights and buffers with these names, and rows."""

        def one(given: list[Tensor], *rows: Tensor) -> list[Tensor]:
            output = functional_call(self._template, dict(zip(names, given, strict=True)), rows[:-1])
            ratios = self.scorer.ratios(output, rows[-1]).values()
            return [part for above, below in ratios for part in (above, below + 0 * above)]

        def plainly(*given: Tensor) -> list[Tensor]:
            rows = given[len(names) :]
            return vmap(one, in_dims=(0, *[None] * len(rows)))(list(given[: len(names)]), *rows)

        if self.trials[0].steps < _WORTH_A_TRACE:
            return plainly(*given)
        form = ("look", repr(self._template), *names, *_shapes(given))
        if form not in self._traces:
            self._traces[form] = traced(plainly, *given)
        return self._traces[form](*given)

    def _averaged(self, place: int, weights: Tensor, entries: dict[str, Tensor]) -> Tensor:
        """The weights to evaluate: for most rules those that are trained."""
        update, kind = self.updates[place], self._kinds[place]
        if type(update.rule).averaged is Rule.averaged:
            return weights

        def one(p: Tensor, state: dict[str, Tensor], constants: dict[str, Tensor]) -> Tensor:
            return _with(update.rule, constants).averaged(p, _state(kind, state))

        return vmap(one)(weights, entries, update.constants)


def _shapes(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """What a trace of operations on these tensors holds for."""
    return [(x.shape, x.stride(), x.dtype, x.device) for x in tensors]


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Weights of an update end to end for each trial; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([_rows(x) for x in tensors], dim=1)


def _rows(x: Tensor) -> Tensor:
    """A row for each trial, of an element at least."""
    return x.flatten(1) if x.ndim > 1 else x[:, None]


def _rates(trials: Sequence[Trial]) -> np.ndarray[Any, Any]:
    """(steps, trials)."""
    schedules = [schedule_of(trial.configuration, trial.steps) for trial in trials]
    if all(isinstance(schedule, Constant) for schedule in schedules):
        return np.tile([schedule(0) for schedule in schedules], (trials[0].steps, 1))
    return np.array([[schedule(step) for schedule in schedules] for step in range(trials[0].steps)])


class _Order:
    """Which samples each trial sees in each step: those that it would see alone."""

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

    def count(self, rows: int, steps: int) -> int:
        """How many of the first `steps` steps have so many rows."""
        epochs = steps // -(-self._samples // self._size)
        left = self._samples % self._size
        if rows == left and rows != self._size:
            return epochs
        return steps - (epochs if left else 0)
