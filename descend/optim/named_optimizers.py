"""Every rule as a named optimizer, and the registry in which users enter their own rules.

opt = descend.optim.LAMB(model.named_parameters(), lr=2e-3)
opt = descend.optim.create("lamb", model.named_parameters(), lr=2e-3)
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from descend.errors import RuleError
from descend.optim import rules
from descend.optim.engine.settings import OPTIONS, OWN_KEYS, TORCH_KEYS
from descend.optim.optimizer_class import optimizer_class
from descend.optim.rules.base import Rule
from descend.rule_index import reason_or_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from descend.optim.optimizer import Optimizer

__all__ = [
    "ADOPT",
    "DCASGD",
    "FTML",
    "FTRL",
    "LAMB",
    "LANS",
    "LARS",
    "LBSGD",
    "MARS",
    "NAG",
    "SGD",
    "SGLD",
    "SOAP",
    "AdEMAMix",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "GroupAdaGrad",
    "HypergradientAdam",
    "Lion",
    "Muon",
    "Nadam",
    "RMSProp",
    "Rprop",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "SignSGD",
    "Signum",
    "create",
    "names",
    "register",
]

RuleClass = TypeVar("RuleClass", bound="type[Rule]")


def _named(rule: type[Rule]) -> type[Optimizer]:
    """The optimizer of a rule under the rule's name, with the defaults that the rule states."""
    return optimizer_class(rule, lr=rule.default_lr, weight_decay=rule.default_weight_decay, decay=rule.default_decay)


SGD = _named(rules.SGD)
NAG = _named(rules.NAG)
AdaGrad = _named(rules.AdaGrad)
GroupAdaGrad = _named(rules.GroupAdaGrad)
RMSProp = _named(rules.RMSProp)
AdaDelta = _named(rules.AdaDelta)
Adam = _named(rules.Adam)
AdamW = _named(rules.AdamW)
AdaBelief = _named(rules.AdaBelief)
AdEMAMix = _named(rules.AdEMAMix)
ADOPT = _named(rules.ADOPT)
Adan = _named(rules.Adan)
Adamax = _named(rules.Adamax)
Nadam = _named(rules.Nadam)
HypergradientAdam = _named(rules.HypergradientAdam)
SignSGD = _named(rules.SignSGD)
Signum = _named(rules.Signum)
Lion = _named(rules.Lion)
MARS = _named(rules.MARS)
LARS = _named(rules.LARS)
LBSGD = _named(rules.LBSGD)
LAMB = _named(rules.LAMB)
LANS = _named(rules.LANS)
DCASGD = _named(rules.DCASGD)
FTRL = _named(rules.FTRL)
FTML = _named(rules.FTML)
SGLD = _named(rules.SGLD)
Rprop = _named(rules.Rprop)
Adafactor = _named(rules.Adafactor)
Muon = _named(rules.Muon)
SOAP = _named(rules.SOAP)
ScheduleFreeSGD = _named(rules.ScheduleFreeSGD)
ScheduleFreeAdamW = _named(rules.ScheduleFreeAdamW)

_CLASSES: dict[str, type[Optimizer]] = {name: globals()[rule.__name__] for name, rule in rules.RULES.items()}


# Keys of groups, and other arguments of `Optimizer` and `create`: no field of a rule may have such a name.
_TAKEN = TORCH_KEYS | OWN_KEYS | {"rule", "runner", "on_nonfinite", "seed", "self"}


def names() -> tuple[str, ...]:
    """The names that `create` accepts, registered ones included, in alphabetical order."""
    return tuple(sorted(_CLASSES))


def rule_class(name: str) -> type[Rule] | None:
    """The class of a rule of this name, in any case, registered ones included; None where there is none."""
    found: Any = _CLASSES.get(name.lower())
    return None if found is None else found.rule_class


def create(name: str, params: Iterable[Any], **options: Any) -> Optimizer:
    """The optimizer of a name, in any case.

    Args:
        name: One of `names()`.
        params: As `Optimizer`.
        options: The rule's own options, and those of `Optimizer`: lr, weight_decay, decay, ...

    Raises:
        RuleError: The name or an option is unknown, or a value is out of range.
    """
    found = _CLASSES.get(name.lower())
    if found is None:
        raise RuleError(f"no optimizer '{name}'{reason_or_nearest(name, names())} known are {', '.join(names())}")
    return found(params, **options)  # pyright: ignore[reportCallIssue]  # each class has its own signature


def register(rule: RuleClass) -> RuleClass:
    """Register a rule of your own for `create`: write `@descend.optim.register` above its class.

    Args:
        rule: A frozen dataclass that is a `Rule`. Its name, in lower case, is what `create` will take.

    Returns:
        The class itself.

    Raises:
        RuleError: It is not a frozen dataclass and Rule, a field has the name of an option, or its own name is taken.
    """
    given: Any = rule  # of any type, since users may decorate anything
    if not (isinstance(given, type) and issubclass(given, Rule)):
        if isinstance(given, Rule):
            raise RuleError(f"{given!r} is a rule with its settings; register takes the class {type(given).__name__}")
        called: str = getattr(given, "__name__", repr(given))
        raise RuleError(f"{called} is not a Rule: write  class {called}(Rule)")
    name = rule.__name__.lower()
    if not is_dataclass(rule) or not cast("Any", rule).__dataclass_params__.frozen:
        raise RuleError(f"{rule.__name__} is not a frozen dataclass: put @dataclass(frozen=True) below @register")
    if taken := [field.name for field in fields(rule) if field.name in OPTIONS]:
        raise RuleError(
            f"{rule.__name__} has a field '{taken[0]}', which is an option of every optimizer; ask for lr or decay by "
            f"a parameter of {rule.moves}, or give the field another name"
        )
    if taken := [field.name for field in fields(rule) if field.name in _TAKEN]:
        raise RuleError(
            f"{rule.__name__} has a field '{taken[0]}', a name that optimizers keep for themselves; give it another"
        )
    if name in _CLASSES:
        raise RuleError(f"there is an optimizer '{name}' already; give {rule.__name__} another name")
    _CLASSES[name] = _named(rule)
    return rule
