"""Every rule as a named optimizer, and the table in which a user's own rule takes its place.

opt = descend.optim.LAMB(model.named_parameters(), lr=2e-3)
opt = descend.optim.create("lamb", model.named_parameters(), lr=2e-3)
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from descend.errors import RuleError, nearest
from descend.optim import rules
from descend.optim.engine.settings import OPTIONS, OWN_KEYS, TORCH_KEYS
from descend.optim.optimizer import Optimizer, face
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DCASGD",
    "FTML",
    "FTRL",
    "LAMB",
    "LANS",
    "LARS",
    "LBSGD",
    "NAG",
    "SGD",
    "SGLD",
    "SOAP",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
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


def _stated(rule: type[Rule]) -> dict[str, Any]:
    """The defaults that a rule states for what the engine applies around it."""
    return {"lr": rule.default_lr, "weight_decay": rule.default_weight_decay, "decay": rule.default_decay}


SGD = face(rules.SGD, **_stated(rules.SGD))
NAG = face(rules.NAG, **_stated(rules.NAG))
AdaGrad = face(rules.AdaGrad, **_stated(rules.AdaGrad))
GroupAdaGrad = face(rules.GroupAdaGrad, **_stated(rules.GroupAdaGrad))
RMSProp = face(rules.RMSProp, **_stated(rules.RMSProp))
AdaDelta = face(rules.AdaDelta, **_stated(rules.AdaDelta))
Adam = face(rules.Adam, **_stated(rules.Adam))
AdamW = face(rules.AdamW, **_stated(rules.AdamW))
AdaBelief = face(rules.AdaBelief, **_stated(rules.AdaBelief))
Adamax = face(rules.Adamax, **_stated(rules.Adamax))
Nadam = face(rules.Nadam, **_stated(rules.Nadam))
HypergradientAdam = face(rules.HypergradientAdam, **_stated(rules.HypergradientAdam))
SignSGD = face(rules.SignSGD, **_stated(rules.SignSGD))
Signum = face(rules.Signum, **_stated(rules.Signum))
Lion = face(rules.Lion, **_stated(rules.Lion))
LARS = face(rules.LARS, **_stated(rules.LARS))
LBSGD = face(rules.LBSGD, **_stated(rules.LBSGD))
LAMB = face(rules.LAMB, **_stated(rules.LAMB))
LANS = face(rules.LANS, **_stated(rules.LANS))
DCASGD = face(rules.DCASGD, **_stated(rules.DCASGD))
FTRL = face(rules.FTRL, **_stated(rules.FTRL))
FTML = face(rules.FTML, **_stated(rules.FTML))
SGLD = face(rules.SGLD, **_stated(rules.SGLD))
Rprop = face(rules.Rprop, **_stated(rules.Rprop))
Adafactor = face(rules.Adafactor, **_stated(rules.Adafactor))
Muon = face(rules.Muon, **_stated(rules.Muon))
SOAP = face(rules.SOAP, **_stated(rules.SOAP))
ScheduleFreeSGD = face(rules.ScheduleFreeSGD, **_stated(rules.ScheduleFreeSGD))
ScheduleFreeAdamW = face(rules.ScheduleFreeAdamW, **_stated(rules.ScheduleFreeAdamW))

_FACES: dict[str, type[Optimizer]] = {name: globals()[rule.__name__] for name, rule in rules.RULES.items()}


# Keys of groups, and further arguments of `Optimizer` and `create`.
_TAKEN = TORCH_KEYS | OWN_KEYS | {"rule", "runner", "on_nonfinite", "seed", "self"}


def names() -> tuple[str, ...]:
    """The names that `create` takes, ours and registered ones, in alphabetical order."""
    return tuple(sorted(_FACES))


def create(name: str, params: Iterable[Any], **options: Any) -> Optimizer:
    """The optimizer of a name, in any case.

    Args:
        name: One of `names()`.
        params: As `Optimizer`.
        options: The rule's own options, and those of `Optimizer`: lr, weight_decay, decay, ...

    Raises:
        RuleError: The name or an option is unknown, or a value is out of range.
    """
    found = _FACES.get(name.lower())
    if found is None:
        raise RuleError(f"no optimizer '{name}'{nearest(name, names()) or ';'} known are {', '.join(names())}")
    return found(params, **options)  # pyright: ignore[reportCallIssue]  # each face has its own signature


def register(rule: RuleClass) -> RuleClass:
    """Give a rule of one's own a place beside ours: `@descend.optim.register` above its class.

    Args:
        rule: A frozen dataclass that is a `Rule`. Its name, in lower case, is what `create` will take.

    Returns:
        The class itself.

    Raises:
        RuleError: It is no frozen dataclass and Rule, a field has the name of an option, or its own name is taken.
    """
    given: Any = rule  # whatever stands below the decorator
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
    if name in _FACES:
        raise RuleError(f"there is an optimizer '{name}' already; give {rule.__name__} another name")
    _FACES[name] = face(rule, **_stated(rule))
    return rule
