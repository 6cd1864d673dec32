"""Options of a parameter group: reading, resolving and checking them.

A group is torch's dict. Its keys are the engine's options below, the fields of its rule (`group["beta1"]`), and `rule`
itself. Everything is read again at each step, so a scheduler or a user's write into a group takes effect, and a wrong
value is refused before anything changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Real
from typing import Any, cast

import numpy as np
import torch

from descend import arguments
from descend.errors import RuleError, nearest
from descend.optim.rules.base import Rule
from descend.rule_index import rules

__all__ = [
    "COUNTERS",
    "DECAY_FORMS",
    "OPTIONS",
    "GroupSettings",
    "GroupSettingsReader",
    "Schedule",
    "constants",
    "describe_options",
    "resolve",
    "rule_fields",
    "unknown_option",
    "unread_keys",
]

Schedule = Callable[[int], float]

DECAY_FORMS = ("coupled", "clipped", "decoupled")

# The engine's own options of a group, with their values unless set.
OPTIONS: Mapping[str, Any] = {
    "lr": 0.0,
    "weight_decay": 0.0,
    "decay": "coupled",
    "rescale_grad": 1.0,
    "clip_value": None,
    "maximize": False,
    "lr_mult": 1.0,
    "scaled": True,
}

# How torch's own optimizers compute, and nothing about what.
TORCH_FORMS = frozenset({"foreach", "fused", "capturable", "differentiable"})

# Torch's schedulers know Adam's constants by this name (OneCycleLR, CyclicLR).
ALIASES: Mapping[str, tuple[str, ...]] = {"betas": ("beta1", "beta2")}

# Keys that torch and its schedulers keep in a group; they are not options.
TORCH_KEYS = frozenset(
    {"params", "param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
)

# Options of the whole optimizer, which wrappers write into each group, and what it counts, as of its last state dict.
COMMON_KEYS = frozenset({"runner", "on_nonfinite"})
COUNTERS = ("updates", "skipped", "seed")

# Keys that SAM, Lookahead and schedule-free wrappers put into groups, although they are or resemble options of rules or
# of torch.
_OF_WRAPPERS = frozenset({"rho", "sam_eps", "alpha", "step", "lr_max", "weight_sum", "foreach", "fused", "capturable"})

# Names that other libraries use for an option, and the option. Where a rule has it, such a key of a group is a mistake.
_OF_LIBRARIES: Mapping[str, str] = {
    **dict.fromkeys(("learning_rate", "learn_rate", "eta"), "lr"),
    **dict.fromkeys(("wd", "weight_decay_rate", "l2"), "weight_decay"),
    **dict.fromkeys(("alpha", "gamma1", "smoothing_constant"), "rho"),
    **dict.fromkeys(("initial_accumulator_value", "initial_scale"), "initial"),
    "gamma2": "momentum",
    "b1": "beta1",
    "b2": "beta2",
    "trust_coefficient": "trust",
    "correct_bias": "bias_correction",
}

# What says nothing about the update: our schedule, which rules made the group, a label that scripts give it, why its
# weights take no sparse gradients although the rule goes by rows, and whether a saved state is one of eval().
OWN_KEYS = frozenset({"schedule", "reasons", "name", "dense_only", "evaluating", *COMMON_KEYS, *COUNTERS})


@dataclass(frozen=True)
class GroupSettings:
    """What holds for every tensor of a group at one step.

    Attributes:
        rule: The rule with the group's constants in it.
        lr: Rate in force, with the group's multiplier in it; finite and at least 0.
        decay: Weight decay, finite and at least 0.
        decay_form: One of `DECAY_FORMS`.
        rescale: Factor on the gradient; negative where the group maximizes.
        clip: Bound on the magnitude of each element of the rescaled gradient, or None.
        scaled: Whether layer-wise scaling applies, for rules that have it.
    """

    rule: Rule
    lr: float
    decay: float
    decay_form: str
    rescale: float
    clip: float | None
    scaled: bool

    def rescaled(self, factor: float) -> GroupSettings:
        """The same with another factor on the gradient."""
        return replace(self, rescale=self.rescale * factor)


def rule_fields(rule: Rule | type[Rule]) -> dict[str, Any]:
    """Option names of a rule with its values (of an instance) or defaults (of a class)."""
    if isinstance(rule, type):
        return {f.name: None if f.default is MISSING else f.default for f in fields(cast("Any", rule))}
    return {f.name: getattr(rule, f.name) for f in fields(cast("Any", rule))}


def aliases_of(rule: Rule | type[Rule]) -> dict[str, tuple[str, ...]]:
    """Torch's names for several fields at once that this rule has."""
    known = rule_fields(rule)
    return {alias: names for alias, names in ALIASES.items() if all(name in known for name in names)}


def constants(rule: Rule) -> dict[str, Any]:
    """A rule's constants as they are in a group, also under torch's names for several of them."""
    known = rule_fields(rule)
    return {**known, **{alias: tuple(known[name] for name in names) for alias, names in aliases_of(rule).items()}}


def describe_options(rule: Rule | type[Rule]) -> str:
    """`beta1=0.9, beta2=0.999, eps=1e-08`: a rule's options for the end of an error."""
    return ", ".join(f"{name}={value!r}" for name, value in rule_fields(rule).items()) or "none of its own"


def unknown_option(owner: str, key: str, rule: Rule | type[Rule], more: Iterable[str] = ()) -> str:
    """The sentence about an option that neither the rule nor the engine has."""
    if key in TORCH_FORMS:
        return f"{owner} has no option '{key}', which tells torch how to compute: leave it out; runner= says that here"
    known = [*rule_fields(rule), *aliases_of(rule), *OPTIONS]
    meant = _OF_LIBRARIES.get(key)
    close = f"; here that is '{meant}'." if meant in known else nearest(key, [*known, *more])
    return f"{owner} has no option '{key}'{close or '.'} Its options are {describe_options(rule)}"


def number(value: object, name: str, where: str, *, negative: bool = False) -> float:
    """`value` as a finite float, or a RuleError that names the setting and its place."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):  # NumPy's numbers are Real, too
        raise RuleError(f"{where}: {name} must be a number, got {arguments.shown(value)}")
    try:
        x = float(value)
    except OverflowError:
        x = math.inf
    if not math.isfinite(x) or (x < 0.0 and not negative):
        hint = "; to ascend, say maximize=True" if name == "lr" and x < 0.0 else ""
        raise RuleError(
            f"{where}: {name} must be a finite number{'' if negative else ' >= 0'}, got {arguments.shown(value)}{hint}"
        )
    return x


def _clip(value: object, where: str) -> float | None:
    bound = None if value is None else number(value, "clip_value", where)
    if bound == 0.0:
        raise RuleError(f"{where}: clip_value is 0, which would erase every gradient; None means no clipping")
    return bound


def _flag(group: Mapping[str, Any], name: str, where: str) -> bool:
    value = group[name]
    if not isinstance(value, bool):
        raise RuleError(f"{where}: {name} must be True or False, got {arguments.shown(value)}")
    return value


def _differs(value: object, other: object) -> bool:
    """Whether these are two values; of an array, which compares each of its elements, always."""
    try:
        return bool(value != other)
    except (RuntimeError, ValueError, TypeError):  # of torch, and of NumPy
        return True


def group_rule(group: Mapping[str, Any], where: str) -> Rule:
    """The group's rule with the constants that are in the group, e.g. after `group["beta1"] = 0.8`."""
    rule = group.get("rule")
    if not isinstance(rule, Rule):
        raise RuleError(f"{where}: rule must be a rule such as Adam(), got {arguments.shown(rule)}")
    known = rule_fields(rule)
    changed = {name: group[name] for name, value in known.items() if name in group and _differs(group[name], value)}
    for alias, names in aliases_of(rule).items():
        changed |= _from_alias(group, alias, names, known, changed, where)
    return replace(cast("Any", rule), **changed) if changed else rule


def _from_alias(
    group: Mapping[str, Any],
    alias: str,
    names: tuple[str, ...],
    known: Mapping[str, Any],
    changed: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """Fields set through torch's name for several of them. What was set by its own name too must agree."""
    values = group.get(alias)
    if values is None:
        return {}
    if not isinstance(values, (tuple, list)) or len(values) != len(names):
        raise RuleError(
            f"{where}: {alias} must hold {len(names)} numbers, ({', '.join(names)}), got {arguments.shown(values)}"
        )
    meant = {name: value for name, value in zip(names, values, strict=True) if _differs(value, known[name])}
    for name, value in meant.items():
        if name in changed and _differs(changed[name], value):
            raise RuleError(f"{where}: {name} is {changed[name]!r} and {alias} says {value!r}; set one of them")
    return meant


@functools.cache
def is_of_others(key: str, rule: type[Rule]) -> bool:
    """Whether a key of a group is not an option, nor like one of its rule, so that other code must have put it there.

    Wrappers around optimizers keep counts and options of their own in the groups that they share with them: Lookahead
    `counter`, SAM `rho` and `adaptive`, layer-wise rates of timm `lr_scale`.
    """
    if _OF_LIBRARIES.get(key) in {*OPTIONS, *rule_fields(rule)}:
        return False
    if key in _OF_WRAPPERS:
        return True
    options = {name for info in rules().values() for name, _ in info.options} | set(ALIASES)
    return not (key in options or key in TORCH_FORMS or nearest(key, [*rule_fields(rule), *ALIASES, *OPTIONS]))


def unread_keys(group: Mapping[str, Any], rule: Rule) -> list[str]:
    """The keys of a group that neither the rule, the engine nor torch reads."""
    read = {"rule", *OPTIONS, *rule_fields(rule), *aliases_of(rule)} | TORCH_KEYS | OWN_KEYS
    return [key for key in group if key not in read]


def resolve(group: Mapping[str, Any], where: str) -> GroupSettings:
    """The settings in force for a group.

    Args:
        group: A group of `Optimizer.param_groups`.
        where: How an error names the group, e.g. "Adam, group 1".

    Raises:
        RuleError: A value is NaN, infinite, negative where it may not be, of the wrong type, or the key is unknown.
    """
    rule = group_rule(group, where)
    for name, default in rule_fields(type(rule)).items():
        value = getattr(rule, name)
        if isinstance(default, bool) and not (isinstance(value, (int, np.bool_)) and value in (0, 1)):
            raise RuleError(f"{where}: {name} must be True or False, got {arguments.shown(value)}")
    for key in unread_keys(group, rule):
        if not is_of_others(key, type(rule)):
            raise RuleError(unknown_option(f"{where} ({type(rule).__name__})", key, rule, more=TORCH_KEYS))
    form = group["decay"]
    if form not in DECAY_FORMS:
        close = nearest(str(form), DECAY_FORMS)
        raise RuleError(f"{where}: decay must be one of {', '.join(DECAY_FORMS)}, got {arguments.shown(form)}{close}")
    if "decay" in rule.needs and form != rule.default_decay:
        raise RuleError(
            f"{where}: {type(rule).__name__} applies weight decay itself, where its equations say, and decay={form!r} "
            "would change nothing; leave decay out"
        )
    rescale = number(group["rescale_grad"], "rescale_grad", where)
    return GroupSettings(
        rule=rule,
        lr=number(group["lr"], "lr", where) * number(group["lr_mult"], "lr_mult", where),
        decay=number(group["weight_decay"], "weight_decay", where),
        decay_form=str(form),
        rescale=-rescale if _flag(group, "maximize", where) else rescale,
        clip=_clip(group["clip_value"], where),
        scaled=_flag(group, "scaled", where),
    )


class GroupSettingsReader:
    """Reads the settings of an optimizer's groups at each step, and keeps those of groups in which nothing changed.

    Args:
        title: How errors name the optimizer.
        common: Options of the whole optimizer. Wrappers that pass on all options (ZeroRedundancyOptimizer) write them
            into each group; another value there is an error.
    """

    def __init__(self, title: str, common: Mapping[str, Any]) -> None:
        self._title = title
        self._common = common
        self._held: dict[int, tuple[list[Any], GroupSettings]] = {}  # values of the group, none of them a tensor
        self._scheduled: dict[int, float] = {}  # the rate that the schedule of a group gave last

    def read(self, groups: Sequence[dict[str, Any]], updates: int) -> list[GroupSettings]:
        """What each group says now.

        Args:
            groups: Torch's groups; the rate that a schedule gives is written into its group.
            updates: How many updates were applied.

        Raises:
            RuleError: A group holds an unknown key or a wrong value.
        """
        settings: list[GroupSettings] = []
        for i, group in enumerate(groups):
            where = f"{self._title}, group {i}"
            if group.get("schedule") is not None:
                self._read_schedule(i, group, where, updates)
            settings.append(self._of(i, group, where))
        return settings

    def forget_schedules(self) -> None:
        """Accept whatever rates the groups hold now: the next reading of a schedule replaces them."""
        self._scheduled = {}

    def start_schedule(self, i: int, group: dict[str, Any], updates: int) -> None:
        """Check the schedule of a new group and write its rate into the group."""
        where = f"{self._title}, group {i}"
        if not callable(group["schedule"]) or not arguments.takes_arguments(group["schedule"], 1):
            raise RuleError(
                f"{where}: schedule must be a function of the step, as those of descend.optim.schedules, got "
                f"{arguments.shown(group['schedule'])}"
            )
        self._set_rate(i, group, where, updates)

    def check_common(self, group: Mapping[str, Any], where: str) -> None:
        """Raise RuleError where a group says of an option of the whole optimizer something else."""
        for key, value in self._common.items():
            if group.get(key, value) != value:
                raise RuleError(
                    f"{where}: {key} is {group[key]!r} here and {value!r} for the optimizer; it holds for all groups: "
                    f"give it as an argument, {key}={group[key]!r}"
                )

    def _of(self, i: int, group: Mapping[str, Any], where: str) -> GroupSettings:
        values = [value for key, value in group.items() if key != "params"]
        held = self._held.get(i)
        if held is not None and held[0] == values:
            return held[1]
        self.check_common(group, where)
        settings = resolve(group, where)
        # A tensor may be written into and be the same object still, so such groups are read at each step.
        if not any(isinstance(value, torch.Tensor) for value in values):
            self._held[i] = (values, settings)
        return settings

    def _read_schedule(self, i: int, group: dict[str, Any], where: str, updates: int) -> None:
        if i in self._scheduled and group["lr"] != self._scheduled[i]:
            if group["lr"] == 0:  # torch.distributed.checkpoint steps so to make a state, and puts the rate back
                return
            raise RuleError(
                f"{where}: lr was set to {group['lr']!r} while a schedule decides it; set group['schedule'] to None or "
                "to another schedule"
            )
        self._set_rate(i, group, where, updates)

    def _set_rate(self, i: int, group: dict[str, Any], where: str, updates: int) -> None:
        rate = number(group["schedule"](updates), "lr", f"{where}, schedule at update {updates}")
        group["lr"] = self._scheduled[i] = rate
