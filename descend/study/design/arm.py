"""An arm of a study: an optimizer, what of it is fixed, what is searched over, and its schedule.

Settings are flat, with dotted names:

    lr, weight_decay, momentum, ...   options of the optimizer
    schedule.warmup_power             options of the schedule, whose peak is `lr`
    roles.bias+norm.lr_mult           options of the weights of some roles; `roles.vectors.optimizer` gives them a rule
    workload.gamma_0                  arguments of the workload, e.g. label smoothing or an initial scale
    phases.long.lr                    options of a later phase of the workload, see `descend.study.phases`
"""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import check_integer, check_string, collect, is_number, shown
from descend.errors import ConfigurationError, nearest
from descend.rule_index import rules
from descend.study.design.parameter_roles import check_roles
from descend.study.design.schedules import check_schedule
from descend.study.design.space import KINDS, Dimension, dimension, log, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ENGINE_OPTIONS", "Arm", "arm", "flat"]

_MAX_DEPTH = 20  # of tables in each other
HEADS = ("schedule", "roles", "workload", "phases")  # of dotted names
ENGINE_OPTIONS = ("lr", "weight_decay", "decay", "rescale_grad", "clip_value", "lr_mult", "scaled")
_SHORT = {  # names that people say for a rule with a setting
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "heavy_ball": ("SGD", {"momentum": 0.9}),
}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names; a dimension is a value and no table."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and not _is_dimension(value):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _is_dimension(value: Mapping[str, Any]) -> bool:
    """Whether a table is a range or a choice, or was meant as one, and no table of settings."""
    inner = list(value.values())
    if len(inner) == 1 and isinstance(inner[0], (list, tuple)):
        return True
    return bool(value) and set(value) <= set(KINDS) and not any(isinstance(one, Mapping) for one in inner)


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Args:
        optimizer: A rule of ours by name ("SGD", "LARS"), any torch optimizer as "module:Class", or, in Python, such a
            class itself.
        space: What is searched over, by dotted name or in tables: `log(1e-3, 1)`, or `{"log": [1e-3, 1]}` as in a file.
        fixed: What is not, by dotted name or in tables.
        schedule: One of `SCHEDULES`, or a table with its `kind` and its options.
        trials: Of each search, where they differ from the study's; such arms are not ranked.

    Raises:
        ConfigurationError: an argument is of another kind, or a space is none; all of them at once.
    """

    optimizer: Any
    space: Mapping[str, Dimension] = field(default_factory=dict[str, Dimension])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    schedule: str = "constant"
    trials: int | None = None

    def __post_init__(self) -> None:
        parts, problems = _parts(self.optimizer, self.space, self.fixed, self.schedule)
        if problems:
            raise ConfigurationError(problems)
        for name, value in {**parts, "trials": plain(self.trials)}.items():
            object.__setattr__(self, name, value)

    @property
    def title(self) -> str:
        """The optimizer as text."""
        if isinstance(self.optimizer, str):
            return self.optimizer
        return f"{self.optimizer.__module__}:{self.optimizer.__qualname__}"

    def configuration(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a trial: optimizer, schedule, fixed settings and a point of the space."""
        return {"optimizer": self.title, "schedule": self.schedule, **self.fixed, **point}

    def problems(self) -> list[str]:
        """What can be seen without running anything."""
        names = [*self.fixed, *self.space]
        found = [f"'{name}' is both fixed and searched over" for name in self.space if name in self.fixed]
        found += check_roles(names)
        values = {**{name: [value] for name, value in self.fixed.items()}, **{k: v.ends for k, v in self.space.items()}}
        found += check_schedule(self.schedule, _part(values, "schedule"))
        found += [
            f"'{name}' begins with none of {', '.join(HEADS)}{nearest(name.partition('.')[0], HEADS)}"
            for name in names
            if "." in name and name.partition(".")[0] not in HEADS
        ]
        if self.trials is not None:
            found += collect(check_integer("trials", self.trials, 1))
        if "lr" not in names:
            found.append("'lr' is neither fixed nor searched over")
        found += [
            f"'{name}' is {shown(value)}; expected a number of at least 0"
            for name in ("lr", "weight_decay", "lr_mult")
            for value in values.get(name, [])
            if not _at_least_0(value)
        ]
        found += [
            f"'{name}' is {shown(value)}; expected a setting" for name, value in self.fixed.items() if no_setting(value)
        ]
        found += self._unknown([name for name in names if "." not in name])
        return found + self._phase_problems(values)

    def _phase_problems(self, values: Mapping[str, list[Any]]) -> list[str]:
        """The same of the settings of later phases, each as if it were an arm of its own."""
        own = {name: listed for name, listed in values.items() if name.startswith("phases.")}
        found = [f"'{name}' must be phases.PHASE.SETTING" for name in own if name.count(".") < 2]
        by_phase: dict[str, dict[str, list[Any]]] = {}
        for name, listed in own.items():
            _, phase, rest = (*name.split(".", 2), "")[:3]
            if rest:
                by_phase.setdefault(phase, {})[rest] = listed
        for phase, settings in by_phase.items():
            wrong = check_roles(list(settings))
            wrong += self._unknown([name for name in settings if "." not in name and name not in _OF_ARM])
            schedule = settings.get("schedule", [self.schedule])[0]
            wrong += check_schedule(schedule, _part(settings, "schedule"))
            wrong += [
                f"'{name}' belongs to the whole trial, and not to a phase"
                for name in settings
                if name.startswith(("workload.", "phases.")) or name == "optimizer"
            ]
            wrong += [
                f"'{name}' is {shown(value)}; expected a number of at least 0"
                for name in ("lr", "weight_decay", "lr_mult")
                for value in settings.get(name, [])
                if not _at_least_0(value)
            ]
            found += [f"phases.{phase}: {one}" for one in wrong]
        return found

    def _unknown(self, names: list[str]) -> list[str]:
        """Options that no rule of ours has; those of other libraries are seen when the class is called."""
        if not isinstance(self.optimizer, str):
            return []
        if ":" in self.optimizer:
            return []
        known = rules().get(self.optimizer.lower())
        if known is None:
            titles = [entry.name for entry in rules().values()]
            return [
                f"there is no optimizer '{self.optimizer}'{nearest(self.optimizer, titles) or ';'} give a rule's name "
                "or any torch optimizer as module:Class"
            ]
        options = [*dict.fromkeys([*(name for name, _ in known.options), *ENGINE_OPTIONS])]
        return [
            f"{known.name} has no option '{name}'{nearest(name, options) or ';'} it has {', '.join(options)}"
            for name in names
            if name not in options
        ]

    def plain(self) -> dict[str, Any]:
        """As it is written in a file."""
        made: dict[str, Any] = {"optimizer": self.title, "schedule": self.schedule}
        if self.trials is not None:
            made["trials"] = self.trials
        return made | {
            "fixed": dict(self.fixed),
            "space": {name: one.plain() for name, one in self.space.items()},
        }


_OF_ARM = ("optimizer", "schedule")


def _at_least_0(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def _usual_rate(optimizer: Any) -> float:
    """The learning rate that a class has by default, by which its range is as wide as those of our rules; or 0.01."""
    if isinstance(optimizer, str):
        module, _, name = optimizer.partition(":")
        if module != "torch.optim":  # others are imported when the workload is, not for a description
            return 1e-2
        optimizer = getattr(importlib.import_module(module), name, None)
    try:
        usual = inspect.signature(optimizer).parameters["lr"].default
    except (TypeError, ValueError, KeyError):
        return 1e-2
    return float(usual) if _is_positive(usual) else 1e-2


def no_setting(value: Any) -> bool:
    """Whether a value of a file is one that no optimizer takes and no record can hold: a date, a time, or NaN."""
    if isinstance(value, dict):
        return any(map(no_setting, cast("Any", value).values()))
    if isinstance(value, (list, tuple)):
        return any(map(no_setting, cast("Any", value)))
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, (datetime.date, datetime.time))


def _part(settings: Mapping[str, Any], head: str) -> dict[str, Any]:
    """The settings under a head, without it."""
    return {name.partition(".")[2]: value for name, value in settings.items() if name.startswith(f"{head}.")}


def arm(value: Any) -> Arm:
    """An arm from what a file or a script says.

    Args:
        value: An `Arm`; a table with the fields of one; a name such as "nesterov" or "LAMB", or a torch optimizer
            class, which get their usual settings and a learning rate searched over four decades; a `functools.partial`
            of a class, whose learning rate is the middle of these, and whose other settings are fixed.

    Raises:
        ConfigurationError: everything that is wrong with it.
    """
    if isinstance(value, Arm):
        return value
    if isinstance(value, dict):
        return _of_table(value)
    if isinstance(value, str) and ":" not in value:
        rule, fixed = _SHORT.get(value.lower(), (value, {}))
        known = rules().get(rule.lower())
        if known is None:
            options = [*(entry.name for entry in rules().values()), *_SHORT]
            raise ConfigurationError(f"there is no optimizer '{value}'{nearest(value, options)}")
        usual = float(dict(known.options)["lr"])
        return Arm(known.name, {"lr": log(usual / 100, usual * 100)}, fixed)
    if isinstance(value, functools.partial) and not value.args:
        plain, fixed = arm(value.func), dict(value.keywords)
        rate = fixed.pop("lr", None)
        space = {"lr": log(rate / 100, rate * 100)} if _is_positive(rate) else plain.space
        return Arm(plain.optimizer, space, {**plain.fixed, **fixed})
    if isinstance(value, str) or callable(value):
        usual = _usual_rate(value)
        return Arm(value, {"lr": log(usual / 100, usual * 100)})
    raise ConfigurationError(
        f"an arm is a name, a torch optimizer class, a table or an Arm, and not an object of {type(value).__name__}"
    )


def _is_positive(rate: object) -> bool:
    return is_number(rate) and 0 < rate < math.inf


def _of_table(table: dict[str, Any]) -> Arm:
    known = ("optimizer", "space", "fixed", "schedule", "trials")
    problems = [
        f"an arm has no {shown(name)}{_close(name, known) or ';'} it has {', '.join(known)}"
        for name in table
        if name not in known
    ]
    if "optimizer" not in table:
        raise ConfigurationError([*problems, "an arm needs an optimizer"])
    given = (table["optimizer"], table.get("space", {}), table.get("fixed", {}), table.get("schedule", "constant"))
    parts, wrong = _parts(*given)
    problems += wrong
    if problems and (len(parts) < _ALL_PARTS or len(problems) > len(wrong)):
        raise ConfigurationError(problems)
    made = Arm(**parts, trials=table.get("trials"))
    if problems:
        raise ConfigurationError(problems + made.problems())
    return made


def _close(name: object, known: Iterable[str]) -> str:
    return nearest(name, known) if isinstance(name, str) else ""


_RANGE = "a range such as descend.study.log(1e-3, 1) or {'log': [1e-3, 1]}"
_ALL_PARTS = 4
_ANY = log(0.5, 1.0)  # in place of a dimension that is none, so that what else is wrong is found with it


def _parts(optimizer: Any, space: Any, fixed: Any, schedule: Any) -> tuple[dict[str, Any], list[str]]:
    """Arguments of an arm as it keeps them, those that are of their kind, and what is wrong with the others."""
    parts: dict[str, Any] = {}
    problems: list[str] = []
    if (isinstance(optimizer, str) and optimizer) or (callable(optimizer) and hasattr(optimizer, "__qualname__")):
        parts["optimizer"] = optimizer
    else:
        what = "a rule's name, any torch optimizer as module:Class, or in Python such a class"
        remedy = ": put its arguments into fixed" if isinstance(optimizer, functools.partial) else ""
        problems.append(f"optimizer must be {what}, got {shown(optimizer)}{remedy}")
    if _is_settings(space, "space", problems):
        parts["space"] = _dimensions(flat(space), problems)
    options: dict[str, Any] = {}
    if isinstance(schedule, str):
        parts["schedule"] = schedule
    elif _is_settings(schedule, "schedule", problems) and _is_text(schedule.get("kind", "constant"), problems):
        parts["schedule"] = schedule.get("kind", "constant")
        options = {f"schedule.{name}": plain(value) for name, value in schedule.items() if name != "kind"}
    if _is_settings(fixed, "fixed", problems):
        parts["fixed"] = {**{name: plain(value) for name, value in flat(fixed).items()}, **options}
    return parts, problems


def _is_settings(value: Any, name: str, problems: list[str]) -> bool:
    """Whether a value is a table whose names are texts, in all tables within; a sentence says what is wrong."""
    if not isinstance(value, Mapping):
        problems.append(f"{name} must be a table, got {shown(value)}: write settings by name, such as {{'lr': ...}}")
        return False
    inner: list[tuple[str, Any]] = [(name, value)]
    while inner:
        place, table = inner.pop()
        for key, one in cast("Mapping[Any, Any]", table).items():
            if not isinstance(key, str) or not key:
                problems.append(f"a name in {place} must be a non-empty string, got {shown(key)}")
                return False
            if place.count("[") >= _MAX_DEPTH:
                problems.append(f"{name} must be a table of at most {_MAX_DEPTH} tables in each other")
                return False
            if isinstance(one, Mapping):
                inner.append((f"{place}[{key!r}]", one))
            if isinstance(one, Mapping) and not one and name == "space":
                problems.append(f"{place}[{key!r}] must be {_RANGE}, got {{}}")
    return True


def _is_text(kind: Any, problems: list[str]) -> bool:
    problems += collect(check_string("schedule['kind']", kind))
    return isinstance(kind, str)


def _dimensions(space: Mapping[str, Any], problems: list[str]) -> dict[str, Dimension]:
    made: dict[str, Dimension] = {}
    for name, one in space.items():
        try:
            made[name] = dimension(one)
        except ConfigurationError as error:
            problems.append(f"space[{name!r}] must be {_RANGE}, got {shown(one)}: {error}")
            made[name] = _ANY
    return made
