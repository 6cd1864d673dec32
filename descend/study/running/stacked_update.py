"""The updates of many trials as one: options they share, and numbers in which they differ as tensors.

`updates_of` brings the settings of all trials together; `update_one_trial` is what `vmap` makes of one trial's update
that of all.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from descend.errors import ConfigurationError
from descend.optim.engine import plain
from descend.optim.engine.settings import OPTIONS, GroupSettings, rule_fields
from descend.study.running.optimizer import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from descend.optim.rules.base import Rule
    from descend.study.running.trial import Trial

__all__ = ["Update", "form_of", "state_of", "update_one_trial", "updates_of", "with_constants"]

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
