"""Trials of one architecture at once: the weights of all of them are stacked, and every operation works on the stack.

Each trial has its own weights, order of samples, rates, decays and constants of its rule. What it computes is what it
would compute alone, up to rounding, since products of a stack add up in another order; run again, it gives the same
bits. A trial that is not finite goes on as NaN without touching the others, and is recorded as having diverged.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from descend.data import order
from descend.errors import ConfigurationError, DescendError
from descend.optim.engine import plain
from descend.optim.engine.settings import OPTIONS, Settings, rule_fields
from descend.study.running.one import status_of
from descend.study.running.optimizer import is_ours, schedule_of, shares
from descend.study.running.scores import Scorer
from descend.study.running.trial import Record, Trial, evaluation_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from descend.optim.rules.base import Rule
    from descend.study.task import Task

__all__ = ["run_together", "whether_together"]

_RANDOM = (
    torch.nn.modules.dropout._DropoutNd,  # pyright: ignore[reportPrivateUsage]  # base of all dropouts
    torch.nn.RReLU,
    torch.nn.RNNBase,
    torch.nn.MultiheadAttention,
)
_ELEMENTWISE = ("norm", "total", "noise")  # a rule that asks for one of these looks at whole tensors


def whether_together(task: Task, trials: Sequence[Trial], kinds: dict[str, Any]) -> str | None:
    """Why these trials cannot run at once; None if they can."""
    if trials[0].arm in kinds or not all(is_ours(trial.configuration) for trial in trials):
        return "an optimizer of another library updates one module at a time"
    module = task.module(trials[0].seed)
    for layer in module.modules():
        if reason := getattr(layer, "runs_alone", ""):
            return str(reason)
        if isinstance(layer, _RANDOM):
            return f"{type(layer).__name__} draws random numbers of its own"
    if next((b for b in module.buffers()), None) is not None:
        return "buffers, such as the running statistics of batch norm, are written by one module at a time"
    if any(p.device.type != part.device.type for p in module.parameters() for part in task.train):
        return "weights and data are on different devices"
    try:
        _Plan.of(trials[:2], [module] * len(trials[:2]))
    except DescendError as error:
        return str(error)
    return None


class _Update(NamedTuple):
    """One update of weights that are told the same in every trial: one tensor, or all of them end to end.

    Attributes:
        names: Of the weights.
        rule: Of the first trial; what differs between trials stands in `constants`.
        constants: Numbers of the rule by name, (trials,), where they differ.
        options: Of the engine, the same for all trials.
        decay: (trials,).
        lr_mult: (trials,).
    """

    names: tuple[str, ...]
    rule: Rule
    constants: dict[str, Tensor]
    options: dict[str, Any]
    decay: Tensor
    lr_mult: Tensor


class _Plan(NamedTuple):
    """What is done to the weights in each step."""

    updates: list[_Update]

    @classmethod
    def of(cls, trials: Sequence[Trial], modules: Sequence[nn.Module]) -> _Plan:
        """Bring the settings of all trials together.

        Raises:
            ConfigurationError: they differ in something that is no number, or a rule needs more than a stack can give.
        """
        each = [shares(trial.configuration, module) for trial, module in zip(trials, modules, strict=True)]
        if len({tuple(share.names for share in listed) for listed in each}) > 1:
            raise ConfigurationError("trials group their weights in different ways")
        updates: list[_Update] = []
        for together in zip(*each, strict=True):
            first = together[0]
            if "noise" in first.rule.needs or first.rule.whole_tensor:
                raise ConfigurationError(f"{type(first.rule).__name__} works on one tensor at a time")
            options = [{**OPTIONS, **share.options} for share in together]
            decay, lr_mult = (
                _column([float(one.pop(name)) for one in options]) for name in ("weight_decay", "lr_mult")
            )
            if any(one != options[0] for one in options):
                raise ConfigurationError("trials differ in an option that is no number")
            constants = _constants([share.rule for share in together])
            whole = not any(name in first.rule.needs for name in _ELEMENTWISE)
            for names in [first.names] if whole else [(name,) for name in first.names]:
                updates.append(_Update(names, first.rule, constants, options[0], decay, lr_mult))
        return cls(updates)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _constants(rules: Sequence[Rule]) -> dict[str, Tensor]:
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
        found[name] = _column(values)
    return found


def _with(rule: Rule, constants: dict[str, Tensor]) -> Rule:
    """The rule with other numbers, unchecked: they were checked one by one."""
    made = object.__new__(type(rule))
    for field in dataclasses.fields(cast("Any", rule)):
        object.__setattr__(made, field.name, constants.get(field.name, getattr(rule, field.name)))
    return made


def _one_update(
    update: _Update, kind: Any, p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: dict[str, Tensor]
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
    constants = {name: numbers[name] for name in update.constants}
    settings = Settings(
        rule=_with(update.rule, constants),
        lr=0.0,  # handed in as a tensor below
        decay=float(bool((update.decay != 0).any())),
        decay_form=options["decay"],
        rescale=-options["rescale_grad"] if options["maximize"] else options["rescale_grad"],
        clip=options["clip_value"],
        scaled=options["scaled"],
    )
    scalars = {"t": numbers["t"], "lr": numbers["lr"], "decay": numbers["decay"]}
    scalars["scaled"] = torch.tensor(float(options["scaled"]), dtype=torch.float64)
    provided = {"norm": functools.partial(plain.norm, whole=p), "total": functools.partial(plain.total, whole=p)}
    held = None if kind is None else kind(**{name: state.get(name) for name in kind._fields})
    new, after = plain.update(g, p, held, settings, scalars, provided)
    entries = {} if after is None else {k: v for k, v in after._asdict().items() if v is not None}
    return new, entries


class _Stack:
    """All trials in the middle of their runs."""

    def __init__(self, task: Task, trials: Sequence[Trial]) -> None:
        modules = [task.module(trial.seed) for trial in trials]
        self.trials = trials
        self.template = modules[0]
        self.plan = _Plan.of(trials, modules)
        params, _ = stack_module_state(modules)
        self.params = {name: p.detach() for name, p in params.items()}
        self.states = [self._begin(update, modules, trials) for update in self.plan.updates]
        self.rates = np.array(
            [[schedule_of(trial.configuration, trial.steps)(step) for step in range(trial.steps)] for trial in trials]
        )
        self.order = _Order(trials, len(task.train[0]))
        self.scorer = Scorer(task)
        self.failed_at = torch.zeros(len(trials), dtype=torch.int64)
        self._step = vmap(grad_and_value(self._loss))

    def _begin(
        self, update: _Update, modules: Sequence[nn.Module], trials: Sequence[Trial]
    ) -> tuple[Any, dict[str, Tensor]]:
        """Class and stacked entries of the state before the first update."""
        made: list[Any] = []
        for number, module in enumerate(modules):
            weights = dict(module.named_parameters())
            flat = _joined([weights[name].detach() for name in update.names])
            constants = {name: float(values[number]) for name, values in update.constants.items()}
            rule = dataclasses.replace(cast("Any", update.rule), **constants)
            made.append(rule.init(flat))
        if made[0] is None:
            return None, {}
        names = [name for name, value in made[0]._asdict().items() if value is not None]
        return type(made[0]), {name: torch.stack([getattr(state, name) for state in made]) for name in names}

    def _loss(self, params: dict[str, Tensor], *rows: Tensor) -> Tensor:
        output = functional_call(self.template, params, rows[:-1])
        ratio = self.scorer.loss.ratio(output, [rows[-1]], len(rows[-1]))
        return ratio.numerator / ratio.denominator

    def step(self, task: Task, number: int) -> None:
        """Update number `number`, from 1."""
        index = self.order.rows(number - 1)
        self.template.train()
        grads, _ = self._step(self.params, *(part[index] for part in task.train))
        finite = torch.ones(len(self.trials), dtype=torch.bool)
        new: dict[str, Tensor] = {}
        for place, update in enumerate(self.plan.updates):
            p, g = (_stacked([source[name] for name in update.names]) for source in (self.params, grads))
            finite &= g.isfinite().all(dim=1) if len(update.names) > 1 else g.flatten(1).isfinite().all(dim=1)
            kind, state = self.states[place]
            numbers = {
                "lr": torch.from_numpy(self.rates[:, number - 1]) * update.lr_mult,
                "decay": update.decay,
                "t": torch.full((len(self.trials),), float(number), dtype=torch.float64),
                **update.constants,
            }
            after, entries = vmap(functools.partial(_one_update, update, kind))(p, g, state, numbers)
            self.states[place] = (kind, entries)
            new |= _parted(after, [(name, self.params[name].shape) for name in update.names])
        self.params = new
        self.failed_at = torch.where((self.failed_at == 0) & ~finite, number, self.failed_at)

    def look(self, *, test: bool = False) -> dict[str, dict[str, Tensor]]:
        """Scores of all trials, (trials,) each; with `test` those on the test samples alone."""
        self.template.eval()

        def one(params: dict[str, Tensor], *rows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
            found = self.scorer.ratios(functional_call(self.template, params, rows[:-1]), rows[-1])
            return {name: (above, below + 0 * above) for name, (above, below) in found.items()}

        def all_of(*rows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
            return vmap(one, in_dims=(0, *[None] * len(rows)))(self.params, *rows)

        return self.scorer.take_test(all_of) if test else self.scorer.take_all(all_of)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Several tensors end to end; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([x.flatten() for x in tensors])


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """`_joined` for each trial."""
    return tensors[0] if len(tensors) == 1 else torch.cat([x.flatten(1) for x in tensors], dim=1)


def _parted(flat: Tensor, shapes: Sequence[tuple[str, torch.Size]]) -> dict[str, Tensor]:
    """The inverse of `_stacked`."""
    if len(shapes) == 1:
        return {shapes[0][0]: flat}
    parts = flat.split([shape[1:].numel() for _, shape in shapes], dim=1)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}


class _Order:
    """Which samples each trial sees in each step: those that it would see alone."""

    def __init__(self, trials: Sequence[Trial], samples: int) -> None:
        self._seeds = [trial.seed for trial in trials]
        self._size = trials[0].batch_size
        self._samples = samples
        self._epoch = -1
        self._rows = torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> Tensor:
        """Numbers of the samples of step `step`, from 0; (trials, samples of the batch)."""
        per_epoch = -(-self._samples // self._size)
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            everything = np.arange(self._samples, dtype=np.int64)
            drawn = [order(seed, epoch, everything, self._samples) for seed in self._seeds]
            self._epoch, self._rows = epoch, torch.from_numpy(np.stack(drawn))
        return self._rows[:, place * self._size : (place + 1) * self._size]


def run_together(
    task: Task, trials: Sequence[Trial], evaluations: int, kinds: dict[str, Any] | None = None
) -> Iterator[Record]:
    """Records of trials that are alike: of one arm, batch size, number of steps and workload.

    Args:
        task: A prepared task.
        trials: What is run.
        evaluations: Looks at the scores of each.
        kinds: Not used; trials with optimizers of other libraries do not run together.
    """
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap says where it falls back to a loop
        stack = _Stack(task, trials)
        at = evaluation_steps(trials[0].steps, evaluations)
        looks = [stack.look()]
        for number in range(1, trials[0].steps + 1):
            stack.step(task, number)
            if number in at:
                looks.append(stack.look())
        confirmed = any(trial.phase == "confirmation" for trial in trials)
        tested = stack.look(test=True) if confirmed else {}
    seconds = (time.perf_counter() - began) / len(trials)
    for place, trial in enumerate(trials):
        record = _record(trial, place, at, looks, int(stack.failed_at[place]), seconds)
        if trial.phase == "confirmation" and record.status != "diverged":
            own = {split: {name: [float(x[place])] for name, x in found.items()} for split, found in tested.items()}
            record = dataclasses.replace(record, scores=record.scores | own)
        yield record


def _record(
    trial: Trial,
    place: int,
    at: tuple[int, ...],
    looks: list[dict[str, dict[str, Tensor]]],
    failed_at: int,
    seconds: float,
) -> Record:
    kept = len([step for step in at if not failed_at or step < failed_at])
    scores = {
        split: {name: [float(look[split][name][place]) for look in looks[:kept]] for name in looks[0][split]}
        for split in looks[0]
    }
    if failed_at:
        return Record(trial, "diverged", at[:kept], scores, failed_at, seconds=seconds)
    status, failed = status_of(at, scores["train"]["loss"])
    return Record(trial, status, at, scores, failed, seconds=seconds)
