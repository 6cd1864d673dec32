"""What a rule is, and what an engine may hand to it.

A rule is the mathematics of one update of one tensor. It knows nothing of loops, groups, schedules, devices, saving
or speed; those are the engine's. Its text is arithmetic on tensors, and the same text runs on one tensor, on a list of
them, and on the whole arena, where what is one number for a tensor becomes a column with one entry a block.

A rule defines one of two methods. Its parameters are found by their names, so a rule asks for what it needs and for
nothing more:

    direction(g, p, s, t, ...) -> (d, s)   the engine then sets p ← p − lr d
    update(g, p, s, t, ...)    -> (p, s)   for rules that are not of that form

    name      what it is
    g         gradient, shaped like p, in the precision of the state; clipped, rescaled and with coupled decay in it
    p         weights, any shape
    s         the state, a NamedTuple of tensors made by `init`, or None
    t         number of this update of this tensor, from 1 up: a float64 scalar
    lr        learning rate in force for this tensor: a float64 scalar
    decay     weight decay in force for this tensor: a float64 scalar. A rule that asks for it applies it itself
    scaled    1 where layer-wise scaling applies to this tensor, 0 where it is excluded: a float64 scalar
    norm      norm(x): the Euclidean norm of x over one tensor, a number a tensor
    total     total(x): the sum of x over one tensor, a number a tensor
    size      number of elements of this tensor: a float64 scalar
    shape     shape of this tensor, a torch.Size; for rules of whole tensors
    row_mean     row_mean(x): the mean over the last dimension, which stays with length 1
    column_mean  column_mean(x): the mean over the last dimension but one, which stays with length 1
    noise     noise(): standard normal numbers shaped like p, reproducible and saved with the state

A state whose entry is shaped like p is kept for each element; an entry of shape () is one number a tensor; an entry
that the settings do not need is None. A rule that needs the shape of its tensor (rows, matrices) says
`whole_tensor = True` and is given one tensor at a time by every runner; its entries may have other shapes. One that
asks for `row_mean` or `column_mean` is such a rule. Where its text is elementwise but for these means, norms and
totals, and each entry of its state is shaped like p or like a mean of it, kernels are compiled for it as for other
rules. Of p with fewer than two dimensions there are no such means.

A rule of whole tensors that also says `takes_stacks = True` may be given several tensors of one shape, settings and t
in one call (engine/stacked.py): g, p and every entry of s then have one more dimension, the first, which counts them,
while `shape` stays that of one tensor, and numbers that norm and total give are columns. What its text does to each is
what it does to one tensor alone: dimensions are counted from the last one, and products of matrices are those of
rules/matrices.py.

A rule of elements alone may say `rowwise = True`: of a sparse gradient it then updates the rows that the gradient has,
with their state, and the other rows stay as they are, moments and decay included.

The class also states the defaults of what the engine applies around the rule: `default_lr`, `default_weight_decay` and
`default_decay` ("coupled", "clipped" or "decoupled"; of no meaning for a rule that asks for `decay`).
"""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend import arguments
from descend.arguments import check_integer, check_number, require, together
from descend.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

__all__ = [
    "MEANS",
    "PROVIDED",
    "Rule",
    "check_choice",
    "check_count",
    "check_finite",
    "check_fraction",
    "check_nonnegative",
    "check_positive",
    "quotient",
]

MEANS = ("row_mean", "column_mean")  # a rule that asks for one is given whole tensors
PROVIDED = ("g", "p", "s", "t", "lr", "decay", "scaled", "norm", "total", "size", *MEANS, "shape", "noise")


class Rule:
    """One update rule: a frozen dataclass of its constants with the paper's letters as field names.

    Raises:
        RuleError: when the class is defined, if it has neither or both of `direction` and `update`, or asks for a name
            that no engine provides; or says `takes_stacks` where its tensors cannot be stacked.
    """

    whole_tensor: ClassVar[bool] = False
    takes_stacks: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()  # the names that the rule's method asks for
    moves: ClassVar[str] = "direction"  # the method that the rule defines
    default_lr: ClassVar[float] = 1e-3
    default_weight_decay: ClassVar[float] = 0.0
    default_decay: ClassVar[str] = "coupled"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _checked_together(vars(cls)["__post_init__"])  # pyright: ignore[reportAttributeAccessIssue]
        own = [name for name in ("direction", "update") if callable(getattr(cls, name, None))]
        if len(own) != 1:
            raise RuleError(
                f"rule {cls.__name__} must define exactly one of direction and update; it defines {own or 'none'}"
            )
        cls.moves = own[0]
        asked = list(inspect.signature(getattr(cls, cls.moves)).parameters)[1:]
        for name in asked:
            if name not in PROVIDED:
                raise RuleError(
                    f"rule {cls.__name__}.{cls.moves} asks for '{name}', which no engine provides"
                    f"{nearest(name, PROVIDED) or ';'} It may ask for {', '.join(PROVIDED)}"
                )
        cls.needs = frozenset(asked)
        if not cls.needs.isdisjoint((*MEANS, "shape")):
            cls.whole_tensor = True
        if cls.takes_stacks and (not cls.whole_tensor or "noise" in cls.needs):
            raise RuleError(
                f"rule {cls.__name__} must be one of whole tensors without noise, got takes_stacks = True: set "
                "whole_tensor = True too, or leave takes_stacks out; noise is drawn for one tensor after the other"
            )

    def init(self, p: Tensor) -> Any:
        """The state before the first update, a NamedTuple of tensors, or None for a rule without state."""
        return None

    def averaged(self, p: Tensor, s: Any) -> Tensor:
        """The weights to evaluate and to keep, where training holds p; p itself for most rules."""
        return p


def _checked_together(post_init: Callable[[Any], None]) -> Callable[[Any], None]:
    """A rule's own checks, which raise one error with all that is wrong."""

    @wraps(post_init)
    def checked(rule: Any) -> None:
        with together(RuleError):
            post_init(rule)

    return checked


def _check(rule: Rule, names: Iterable[str], check: Callable[[str, Any], str | None]) -> None:
    require((check(name, getattr(rule, name)) for name in names), where=type(rule).__name__, error=RuleError)


def check_finite(rule: Rule, *names: str) -> None:
    """Raise RuleError unless each named field is a finite number."""
    _check(rule, names, check_number)


def check_fraction(rule: Rule, *names: str) -> None:
    """Raise RuleError unless each named field is in [0, 1)."""
    _check(rule, names, partial(check_number, at_least=0, below=1))


def check_nonnegative(rule: Rule, *names: str) -> None:
    """Raise RuleError unless each named field is finite and at least 0."""
    _check(rule, names, partial(check_number, at_least=0))


def check_positive(rule: Rule, *names: str) -> None:
    """Raise RuleError unless each named field is finite and above 0."""
    _check(rule, names, partial(check_number, above=0))


def check_count(rule: Rule, *names: str, minimum: int = 1) -> None:
    """Raise RuleError unless each named field is an integer of at least `minimum`; 3.0 is one."""

    def check(name: str, value: Any) -> str | None:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return check_integer(name, whole, minimum)

    _check(rule, names, check)


def check_choice(rule: Rule, name: str, choices: tuple[str, ...]) -> None:
    """Raise RuleError unless the named field is one of `choices`."""
    _check(rule, (name,), lambda name, value: arguments.check_choice(name, value, choices))


def quotient(a: Tensor, b: Tensor, eps: float = 0.0) -> Tensor:
    """a / b, and 0 where b is 0: what a rule means whose denominator may vanish together with its numerator.

    Args:
        a: Numerator.
        b: Denominator, shaped like a.
        eps: What is already in b. Above 0 it keeps b from 0, and this is an ordinary division.
    """
    if eps > 0:
        return a / b
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, torch.ones_like(b), b))
