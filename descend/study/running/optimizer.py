"""From a configuration to an optimizer: options of the rule, of each role, and the schedule."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.optim import Optimizer, rules
from descend.optim.engine.settings import OPTIONS, rule_fields, unknown_option
from descend.study.design.parameter_roles import roles_of, split_roles
from descend.study.design.schedules import make_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor, nn

    from descend.optim.rules.base import Rule
    from descend.optim.schedules import Schedule

__all__ = ["TrialOptimizerGroup", "build", "is_ours", "make", "multipliers", "schedule_of", "shares"]


@dataclass(frozen=True)
class TrialOptimizerGroup:
    """Parameters with the same options.

    Attributes:
        names: Of the weights.
        rule: Their rule.
        options: Options of the engine: weight_decay, decay, lr_mult, scaled, ...; no learning rate.
    """

    names: tuple[str, ...]
    rule: Rule
    options: dict[str, Any]


def schedule_of(configuration: Mapping[str, Any], steps: int) -> Schedule:
    """The schedule of a configuration."""
    options = {name.partition(".")[2]: v for name, v in configuration.items() if name.startswith("schedule.")}
    return make_schedule(configuration["schedule"], options, float(configuration["lr"]), steps)


def _of_roles(configuration: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by role, later entries over earlier ones."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in configuration.items():
        if name.startswith("roles."):
            _, which, option = name.split(".")
            for role in split_roles(which):
                found.setdefault(role, {})[option] = value
    return found


def _options_of(configuration: Mapping[str, Any], module: nn.Module) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Names of parameters and their options, one entry for each set of options."""
    general = {k: v for k, v in configuration.items() if "." not in k and k not in ("schedule", "lr")}
    by_role = _of_roles(configuration)
    roles = roles_of(module)
    groups: list[tuple[list[str], dict[str, Any]]] = []
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        own = by_role.get(roles[name], {})
        # Another rule has other options, so those of the arm's own rule do not go with it; the decay does.
        other = own.get("optimizer", general["optimizer"]) != general["optimizer"]
        base = {k: v for k, v in general.items() if not other or k in OPTIONS or k == "momentum"}
        options_given = {**base, **own}
        group = next((group for group in groups if group[1] == options_given), None)
        if group is None:
            group = ([], options_given)
            groups.append(group)
        group[0].append(name)
    return [(tuple(names), options_given) for names, options_given in groups]


def shares(configuration: Mapping[str, Any], module: nn.Module) -> list[TrialOptimizerGroup]:
    """The options of every parameter, for our own rules.

    Raises:
        ConfigurationError: an option is unknown or out of range.
    """
    return [
        TrialOptimizerGroup(names, *_rule(options_given)) for names, options_given in _options_of(configuration, module)
    ]


def _rule(options_given: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    name = options_given["optimizer"]
    kind = rules.RULES.get(str(name).lower())
    if kind is None:
        raise ConfigurationError(f"there is no optimizer '{name}'{nearest(str(name), rules.RULES)}")
    known = rule_fields(kind)
    constants = {k: v for k, v in options_given.items() if k in known}
    wrong = [k for k in options_given if k not in known and k not in OPTIONS and k not in ("optimizer", "momentum")]
    if wrong:
        raise ConfigurationError([unknown_option(kind.__name__, k, kind) for k in wrong])
    options = {"weight_decay": kind.default_weight_decay, "decay": kind.default_decay}
    options |= {k: v for k, v in options_given.items() if k in OPTIONS}
    return kind(**constants), options


def is_ours(configuration: Mapping[str, Any]) -> bool:
    """Whether the optimizer is one of our rules."""
    return ":" not in str(configuration["optimizer"])


def build(
    configuration: Mapping[str, Any], steps: int, named: list[tuple[str, Tensor]], module: nn.Module, kind: Any
) -> torch.optim.Optimizer:
    """The optimizer of a trial.

    Args:
        configuration: Of the trial.
        steps: Updates of the run.
        named: The weights that are trained.
        module: Whose they are.
        kind: A torch optimizer class; None for a rule of ours.
    """
    weights = dict(named)
    if kind is None:
        options_given = shares(configuration, module)
        groups = [
            {"params": [(name, weights[name]) for name in share.names], "rule": share.rule, **share.options}
            for share in options_given
        ]
        return Optimizer(groups, rule=options_given[0].rule, lr=schedule_of(configuration, steps))
    first = schedule_of(configuration, steps)(0)
    foreign = [
        {
            "params": [weights[name] for name in names],
            "lr": float(options_given.get("lr_mult", 1.0)) * first,
            **{option: value for option, value in options_given.items() if option not in ("optimizer", "lr_mult")},
        }
        for names, options_given in _options_of(configuration, module)
    ]
    return kind(foreign, lr=first)


def multipliers(configuration: Mapping[str, Any], module: nn.Module) -> list[float]:
    """Of the rate, one for each group of an optimizer of another library, which has no option for it."""
    return [float(options_given.get("lr_mult", 1.0)) for _, options_given in _options_of(configuration, module)]


def foreign_class(title: str) -> Any:
    """The class behind `module:Class`.

    Raises:
        ConfigurationError: there is none.
    """
    place, _, name = title.partition(":")
    try:
        found: Any = importlib.import_module(place)
    except ImportError as error:
        raise ConfigurationError(f"optimizer '{title}': module '{place}' cannot be imported: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"optimizer '{title}': {place} has no '{name}'{nearest(name, vars(found))}")
        found = getattr(found, part)
    return found


def make(configuration: Mapping[str, Any], steps: int, module: nn.Module, kind: Any = None) -> Any:
    """A function from named weights to the optimizer, as `descend.fit` takes it.

    Args:
        configuration: Of the trial.
        steps: Updates of the run.
        module: Whose weights they are.
        kind: The optimizer class of an arm that has one that is not a name.
    """
    if kind is None and not is_ours(configuration):
        kind = foreign_class(configuration["optimizer"])
    return functools.partial(build, configuration, steps, module=module, kind=kind)
