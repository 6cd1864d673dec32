"""What a translation yields, and how an optimizer is made of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from descend.errors import RuleError, Unsupported, nearest
from descend.optim.engine import parameter_checks as ownership
from descend.optim.engine.step_inputs import open_entry
from descend.optim.optimizer import Optimizer
from descend.optim.rules.adagrad import AdaGrad
from descend.optim.rules.sgd import SGD
from descend.optim.schedules import Constant

if TYPE_CHECKING:
    from descend.optim.rules.base import Rule
    from descend.optim.schedules import Schedule

__all__ = ["TranslatedGroup", "Translation", "build", "call", "check_kinds", "falling", "members"]

Made = TypeVar("Made")


@dataclass(frozen=True)
class TranslatedGroup:
    """One tensor as it was given: its position and, where there is one, its name."""

    index: int
    name: str | None
    tensor: Tensor


@dataclass(frozen=True)
class Translation:
    """An optimizer of another library in our words.

    Attributes:
        rule: The rule with the library's settings.
        lr: Rate, or a schedule.
        weight_decay: λ.
        decay: "coupled", "clipped" or "decoupled".
        rescale_grad: Factor on every gradient.
        clip_value: Bound on each element, or None.
        maximize: Whether to ascend.
        on_nonfinite: "raise", "skip" or "allow".
        begin: Updates that count as applied before the first one.
        begin_state: Whether they count for the tensors (bias correction) as well as for the schedule.
        by_rows: Whether a sparse gradient moves its rows alone there too, with their moments and decay.
        own: What differs from tensor to tensor: options of its group.
        refuse: Why a tensor cannot be had, or None.
        check: What is wrong with the arguments in sight of all tensors.
    """

    rule: Rule
    lr: float | Schedule
    weight_decay: float = 0.0
    decay: str = "coupled"
    rescale_grad: float = 1.0
    clip_value: float | None = None
    maximize: bool = False
    on_nonfinite: str = "raise"
    begin: int = 0
    begin_state: bool = True
    by_rows: bool = False
    own: Callable[[TranslatedGroup], Mapping[str, Any]] = field(default=lambda member: {})
    refuse: Callable[[TranslatedGroup], str | None] = field(default=lambda member: None)
    check: Callable[[Sequence[TranslatedGroup]], list[str]] = field(default=lambda found: [])

    def options(self) -> dict[str, Any]:
        """The options of a group; a rule that applies the decay itself gets no form of it."""
        form = {} if "decay" in self.rule.needs else {"decay": self.decay}
        return {
            "rule": self.rule,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            **form,
            "rescale_grad": self.rescale_grad,
            "clip_value": self.clip_value,
            "maximize": self.maximize,
        }

    def dense_only(self, title: str, weight_decay: float) -> dict[str, str]:
        """Why a sparse gradient is not taken, where a rule of ours goes by rows and the other library does not.

        Without a decay, AdaGrad and SGD without a momentum leave a row as it is whose gradient is zero.
        """
        rule = self.rule
        still = isinstance(rule, AdaGrad) or (isinstance(rule, SGD) and not rule.momentum)
        if not rule.rowwise or self.by_rows or (still and not weight_decay):
            return {}
        return {"dense_only": f"{title} does not move its rows alone as this rule here would"}


def call(title: str, make: Callable[..., Made], kwargs: Mapping[str, Any]) -> Made:
    """`make(**kwargs)`, with an error that names an argument which the other library does not have.

    Raises:
        RuleError: An argument is unknown or missing.
    """
    known = inspect.signature(make).parameters
    wrong = [name for name in kwargs if name not in known]
    if wrong:
        listed = ", ".join(known)
        raise RuleError(
            [f"{title} has no argument '{name}'{nearest(name, known) or ';'} It takes {listed}" for name in wrong]
        )
    missing = [name for name, p in known.items() if p.default is p.empty and name not in kwargs]
    if missing:
        raise RuleError(f"{title} needs {', '.join(missing)}")
    check_kinds(title, make, kwargs)
    return make(**kwargs)


def check_kinds(title: str, make: Callable[..., object], given: Mapping[str, Any]) -> None:
    """Refuse arguments of another kind than the signature of `make` says.

    Raises:
        RuleError: An argument is not of its kind, such as "False" for a flag, which would count as true.
    """
    problems = [
        f"{title}: {name} must be {wanted}, got {given[name]!r}"
        for name, p in inspect.signature(make).parameters.items()
        if name in given and (wanted := _wanted(str(p.annotation), given[name])) is not None
    ]
    if problems:
        raise RuleError(problems)


def _wanted(kind: str, value: Any) -> str | None:
    """What an argument annotated like this must be, or None where the value is that."""
    if value is None and kind.endswith("None"):
        return None
    for beginning, words, fits in _KINDS:
        if kind.startswith(beginning):
            return None if fits(value) else words
    return None


def _number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


_KINDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("Sequence", "a list of numbers", lambda x: isinstance(x, (list, tuple)) and all(map(_number_or_none, x))),
    (
        "Mapping[int, float]",
        "a dict of numbers",
        lambda x: isinstance(x, Mapping) and all(map(_is_number, (*cast("Any", x), *cast("Any", x).values()))),
    ),
    ("float", "a number", _is_number),
    ("int", "a number", _is_number),
    ("bool", "True or False", lambda x: isinstance(x, (bool, np.bool_)) or (isinstance(x, int) and x in (0, 1))),
    ("str", "a text", lambda x: isinstance(x, str)),
)


def falling(initial: float, falls: Iterable[tuple[int, float]]) -> Schedule:
    """`initial`, times a factor of its own from each of some steps on; a step may be listed several times."""
    made: Schedule = Constant(initial)
    for step, factor in sorted(falls):
        initial *= factor
        made = made.then(Constant(initial), step)
    return made


def members(group: Mapping[str, Any], where: str, first: int = 0) -> list[TranslatedGroup]:
    """The tensors of a group, which holds a list of tensors or of (name, tensor) pairs.

    Args:
        group: The group.
        where: How errors name it.
        first: Position of its first tensor among those of all groups.

    Raises:
        RuleError: It holds anything else.
    """
    opened = ownership.unpack(group, where)
    tensors: list[Any] = opened["params"]
    for index, tensor in enumerate(tensors, first):
        if not isinstance(tensor, Tensor):
            raise RuleError(
                f"{where}: weights {index}: expected a tensor or a (name, tensor) pair and got {type(tensor).__name__}"
            )
    names = opened.get("param_names", [None] * len(tensors))
    return [TranslatedGroup(first + i, *named) for i, named in enumerate(zip(names, tensors, strict=True))]


def build(title: str, params: Iterable[Any], recipe_of: Callable[[Mapping[str, Any]], Translation]) -> Optimizer:
    """The optimizer of a recipe.

    Args:
        title: How errors name it, e.g. "mxnet-2.0 adam".
        params: Tensors, (name, tensor) pairs, or groups with arguments of their own.
        recipe_of: The recipe for a group's own arguments; {} for those of the call.

    Raises:
        Unsupported: A tensor is of a kind that cannot be had.
        RuleError: As `Optimizer`.
    """
    alone = isinstance(params, Mapping) and "params" in params
    given = [params] if alone else ownership.listed(params, title)
    default = recipe_of({})
    groups: list[dict[str, Any]] = []
    translated: list[TranslatedGroup] = []
    for position, group in enumerate(_grouped(given)):
        found = members(group, f"{title}, group {position}", len(translated))
        translated += found
        own = {key: value for key, value in group.items() if key != "params"}
        recipe = recipe_of(own) if own else default
        _refuse(title, recipe, found)
        groups.extend(_split(title, recipe, found))
    if problems := default.check(translated):
        raise RuleError([f"{title}: {problem}" for problem in problems])
    # The options are in every group; here they are defaults of a group that is added later.
    optimizer = Optimizer(groups, on_nonfinite=cast("Any", default.on_nonfinite), **default.options())
    _begin(optimizer, default)
    return optimizer


def _grouped(given: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    if not any(isinstance(item, Mapping) for item in given):
        return [{"params": given}]
    return [item if isinstance(item, Mapping) else {"params": [item]} for item in given]


def _refuse(title: str, recipe: Translation, found: Sequence[TranslatedGroup]) -> None:
    problems = [
        f"{title}: weights {member.name or member.index} cannot be had: {reason}"
        for member in found
        if (reason := recipe.refuse(member)) is not None
    ]
    if problems:
        raise Unsupported(problems)


def _split(title: str, recipe: Translation, found: Sequence[TranslatedGroup]) -> list[dict[str, Any]]:
    """One group for each set of own options, in the order in which they first appear."""
    groups: dict[tuple[tuple[str, Any], ...], list[Any]] = {}
    for member in found:
        own = tuple(sorted(recipe.own(member).items()))
        groups.setdefault(own, []).append(member.tensor if member.name is None else (member.name, member.tensor))
    options = [{**recipe.options(), **dict(own)} for own in groups]
    return [
        {"params": listed, **said, **recipe.dense_only(title, said["weight_decay"])}
        for said, listed in zip(options, groups.values(), strict=True)
    ]


def _begin(optimizer: Optimizer, recipe: Translation) -> None:
    """Count `begin` updates as applied."""
    if not recipe.begin:
        return
    optimizer.begin_at(recipe.begin)
    for group in optimizer.param_groups:
        for p in group["params"] if recipe.begin_state else ():
            open_entry(optimizer.state[p], group["rule"], p)
            optimizer.state[p]["step"] = torch.tensor(float(recipe.begin), dtype=torch.float64, device="cpu")
