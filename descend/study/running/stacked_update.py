"""The updates of many trials as one: options they share, and numbers in which they differ as tensors.

`updates_of` brings the settings of all trials together; `update_one_trial` is what `vmap` makes of one trial's update
that of all.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from descend.errors import ConfigurationError
from descend.optim.engine import plain
from descend.optim.engine.settings import OPTIONS, GroupSettings, rule_fields
from descend.study.running.optimizer import shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from descend.optim.rules.base import Rule
    from descend.study.running.trial import Trial

__all__ = [
    "StackLayout",
    "Update",
    "end_to_end",
    "form_of",
    "one_row_per_trial",
    "state_of",
    "trace_key",
    "update_one_trial",
    "updates_of",
    "with_constants",
]

_ELEMENTWISE = ("norm", "total", "noise")  # a rule that asks for one of these looks at whole tensors


_LARGE = 2048  # elements, which take longer to be copied than an operation of their own takes to be called


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
        ConfigurationError: they differ in something that is not a number, or a rule needs more than a stack can give.
    """
    each = [shares(trial.configuration, module) for trial, module in zip(trials, modules, strict=True)]
    if len({tuple(share.names for share in listed) for listed in each}) > 1:
        raise ConfigurationError("trials group their weights in different ways")
    device = next((p.device for p in modules[0].parameters()), torch.device("cpu"))
    updates: list[Update] = []
    for together in zip(*each, strict=True):
        first = together[0]
        if not first.rule.needs.isdisjoint(("noise", "size")) or first.rule.whole_tensor:
            raise ConfigurationError(f"{type(first.rule).__name__} works on one tensor at a time")
        options = [{**OPTIONS, **share.options} for share in together]
        decay, lr_mult = (
            _column([float(one.pop(name)) for one in options], device) for name in ("weight_decay", "lr_mult")
        )
        if any(one != options[0] for one in options):
            raise ConfigurationError("trials differ in an option that is not a number")
        constants = _constants([share.rule for share in together], device)
        whole = not any(name in first.rule.needs for name in _ELEMENTWISE)
        for names in _tensors(first.names, modules[0]) if whole else [(name,) for name in first.names]:
            decays = bool(decay.any())
            updates.append(Update(names, first.rule, constants, options[0], decays, decay, lr_mult))
    return updates


def _tensors(names: Sequence[str], module: nn.Module) -> list[tuple[str, ...]]:
    """Weights that an elementwise rule updates: large ones where they are, and all small ones end to end."""
    large = [name for name in names if module.get_parameter(name).numel() >= _LARGE]
    small = tuple(name for name in names if name not in large)
    return [*((name,) for name in large), *([small] if small else [])]


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
            raise ConfigurationError(f"trials differ in '{name}', which is not a number above 0 in all of them")
        found[name] = _column(values, device)
    return found


def form_of(update: Update) -> tuple[Any, ...]:
    """What stands in the trace of an update as a number or a decision, and not as a tensor."""
    own = {name: value for name, value in rule_fields(update.rule).items() if name not in update.constants}
    options = sorted(update.options.items())
    return (update.names, type(update.rule), repr(own), *update.constants, repr(options), update.decays)


def with_constants(rule: Rule, constants: dict[str, Tensor]) -> Rule:
    """The rule with other numbers, unchecked: they were checked one by one."""
    made = object.__new__(type(rule))
    for field in dataclasses.fields(cast("Any", rule)):
        object.__setattr__(made, field.name, constants.get(field.name, getattr(rule, field.name)))
    return made


def update_one_trial(
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
        rule=with_constants(update.rule, {name: numbers[name] for name in update.constants}),
        lr=0.0,  # passed as a tensor below
        decay=float(update.decays),
        decay_form=options["decay"],
        rescale=-options["rescale_grad"] if options["maximize"] else options["rescale_grad"],
        clip=options["clip_value"],
        scaled=options["scaled"],
    )
    scalars = {"t": numbers["t"], "lr": numbers["lr"], "decay": numbers["decay"]}
    scalars["scaled"] = torch.tensor(float(options["scaled"]), dtype=torch.float64)
    provided = {"norm": functools.partial(plain.norm, whole=p), "total": functools.partial(plain.total, whole=p)}
    new, after = plain.update(g, p, state_of(kind, state), settings, scalars, provided)
    return new, {} if after is None else {k: v for k, v in after._asdict().items() if v is not None}


def state_of(kind: Any, entries: dict[str, Tensor]) -> Any:
    """The state of a rule of this class from its entries, the others None; None for a rule without state."""
    return None if kind is None else kind(**{name: entries.get(name) for name in kind._fields})


@dataclass(frozen=True)
class StackLayout:
    """The order of the tensors that a step changes.

    Attributes:
        updates: What is done to the weights in a step.
        shapes: Of each parameter in one trial, by name.
        buffers: Names of the buffers.
        state_types: Class of the state of each update's rule; None for a rule without state.
        entries: Names of the entries of these states that are not None.
    """

    updates: Sequence[Update]
    shapes: Mapping[str, torch.Size]
    buffers: tuple[str, ...]
    state_types: tuple[Any, ...]
    entries: tuple[tuple[str, ...], ...]

    @classmethod
    def begin(
        cls, updates: Sequence[Update], params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[StackLayout, list[Tensor]]:
        """The layout of a stack, and its tensors before the first update.

        Args:
            updates: What is done to the weights in a step.
            params: Stacked parameters by name, (trials, ...), those that no update changes included.
            buffers: Stacked buffers by name.
        """
        weights = [end_to_end([params[name].detach() for name in update.names]) for update in updates]
        states = [_initial_state(update, flat) for update, flat in zip(updates, weights, strict=True)]
        entries = [entries for _, entries in states]
        shapes = {name: p.shape[1:] for name, p in params.items()}
        layout = cls(updates, shapes, tuple(buffers), tuple(kind for kind, _ in states), tuple(map(tuple, entries)))
        return layout, [*weights, *(x for each in entries for x in each.values()), *buffers.values()]

    def split(self, held: Sequence[Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]], dict[str, Tensor]]:
        """Weights and state of each update, and buffers."""
        rest = iter(held[len(self.updates) :])
        states = [{name: next(rest) for name in names} for names in self.entries]
        return list(held[: len(self.updates)]), states, dict(zip(self.buffers, rest, strict=True))

    def by_name(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Trained weights in their shapes, (trials, ...), from those of each update end to end."""
        found: dict[str, Tensor] = {}
        for update, flat in zip(self.updates, weights, strict=True):
            if len(update.names) == 1:
                found[update.names[0]] = flat
                continue
            parts = one_row_per_trial(flat).split([self.shapes[name].numel() for name in update.names], dim=1)
            for name, part in zip(update.names, parts, strict=True):
                found[name] = part.reshape(len(flat), *self.shapes[name])
        return found


def _initial_state(update: Update, weights: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Class and stacked entries of the state before the first update."""
    made: list[Any] = []
    for number, flat in enumerate(weights):
        constants = {name: float(values[number]) for name, values in update.constants.items()}
        made.append(dataclasses.replace(cast("Any", update.rule), **constants).init(flat))
    if made[0] is None:
        return None, {}
    names = [name for name, value in made[0]._asdict().items() if value is not None]
    return type(made[0]), {name: torch.stack([getattr(state, name) for state in made]) for name in names}


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """Weights of an update end to end for each trial; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([one_row_per_trial(x) for x in tensors], dim=1)


def one_row_per_trial(x: Tensor) -> Tensor:
    """(trials, elements), with at least one element."""
    return x.flatten(1) if x.ndim > 1 else x[:, None]


def trace_key(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """The properties of its inputs that a trace of operations depends on."""
    return [(x.shape, x.stride(), x.dtype, x.device) for x in tensors]
