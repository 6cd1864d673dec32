"""Runs a user's rule once on six numbers, to report mistakes in it before training starts."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.errors import RuleError
from descend.optim.engine.plain import step_plain
from descend.optim.engine.settings import GroupSettings
from descend.optim.engine.stacked import step_stacks
from descend.optim.engine.step_inputs import TensorUpdate, open_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.optim.rules.base import Rule

__all__ = ["check_rule"]

KEPT = ("step", "master")  # what the engine keeps beside the entries of a state
STATE = "None or a NamedTuple of tensors, such as  class State(NamedTuple): m: Tensor"
_TRIED: weakref.WeakSet[type[Rule]] = weakref.WeakSet()


def check_rule(rule: Rule) -> None:
    """Run `init` and one update over a 2 × 3 tensor, once for each class that is not ours.

    Rules that take each tensor as a whole may want another shape and are not tried, but for those that take stacks.

    Raises:
        RuleError: The text cannot be run; or what it returns is no state, or not shaped like the weights; or it writes
            into the gradient or the weights; or it makes of two tensors at once what it does not make of each.
    """
    if type(rule) in _TRIED or type(rule).__module__.startswith("descend.optim.rules."):
        return
    p = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64, device="cpu").reshape(2, 3)
    g = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.25, -3.0]], dtype=torch.float64, device="cpu")
    if rule.whole_tensor:
        if rule.takes_stacks:
            _check_stack(rule, g, p)
            _TRIED.add(type(rule))
        return
    s = _state(rule, p)
    _one_update(rule, g, p, s)
    sizes = [tuple(x.shape) for x in _entries(s).values()]
    if any(size not in ((), (2, 3)) for size in sizes):
        raise RuleError(
            f"rule {_name(rule)}: entries of its state must be shaped like the weights or hold one number, and over "
            f"weights of (2, 3) they are {', '.join(map(str, sizes))}; one that keeps others says whole_tensor = True"
        )
    _TRIED.add(type(rule))


def _check_stack(rule: Rule, g: Tensor, p: Tensor) -> None:
    """Update two tensors at once, and each alone."""
    settings = GroupSettings(rule, 0.1, 0.0, "coupled", 1.0, None, True)

    def updates() -> list[TensorUpdate]:
        tasks = [TensorUpdate(str(i), 0, q.clone(), g / (i + 1), settings, {}) for i, q in enumerate((p, p.flip(1)))]
        open_states(tasks)
        return tasks

    alone, together = updates(), updates()
    try:
        step_plain(alone, 0)
    except Exception:  # it may want another shape
        return
    if _run(rule, f"{rule.moves} of two tensors at once", lambda: step_stacks(together)):
        return
    for one, other in zip(alone, together, strict=True):
        pairs = [("p", one.param, other.param), *((name, x, other.entry[name]) for name, x in one.entry.items())]
        for name, expected, found in pairs:
            if not torch.allclose(found, expected, rtol=1e-6, atol=1e-9, equal_nan=True):
                raise RuleError(
                    f"rule {_name(rule)}.{rule.moves} must give each of two tensors the {name} that it gives it alone, "
                    "got another one: count dimensions from the last one, or leave takes_stacks out"
                )


def _name(rule: Rule) -> str:
    return type(rule).__name__


def _run(rule: Rule, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as problem:  # of a user's text, whatever its kind
        raise RuleError(
            f"rule {_name(rule)}.{method} cannot be run over weights of shape (2, 3): "
            f"{type(problem).__name__}: {problem}"
        ) from problem


def _state(rule: Rule, p: Tensor) -> Any:
    s = _run(rule, "init", lambda: rule.init(p.clone()))
    if s is not None and not hasattr(s, "_asdict"):
        raise RuleError(f"rule {_name(rule)}.init must return {STATE}; it returns a {type(s).__name__}")
    for name, value in ({} if s is None else s._asdict()).items():
        if name in KEPT:
            raise RuleError(f"rule {_name(rule)}: '{name}' in its state is a name that the engine keeps for itself")
        if value is not None and not isinstance(value, Tensor):
            raise RuleError(f"rule {_name(rule)}.init must return {STATE}; its '{name}' is {value!r}")
    return s


def _entries(s: Any) -> dict[str, Tensor]:
    return {} if s is None else {name: x for name, x in s._asdict().items() if x is not None}


def _one_update(rule: Rule, g: Tensor, p: Tensor, s: Any) -> None:
    number = functools.partial(torch.tensor, dtype=torch.float64, device="cpu")
    known: dict[str, Any] = {
        "t": number(1.0),
        "lr": number(0.1),
        "decay": number(0.01),
        "scaled": number(1.0),
        "norm": torch.linalg.vector_norm,
        "total": torch.sum,
        "size": number(float(p.numel())),
        "row_mean": lambda x: x.mean(-1, keepdim=True),
        "column_mean": lambda x: x.mean(-2, keepdim=True),
        "shape": p.shape,
        "noise": g.clone,
        "g": g,
        "p": p,
        "s": s,
    }
    held = {"g": g.clone(), "p": p.clone()}
    method = getattr(rule, rule.moves)
    with torch.no_grad():
        back = _run(rule, rule.moves, lambda: method(**{name: known[name] for name in rule.needs}))
    _check_returned(rule, back, p, s)
    for name, before in held.items():
        if not torch.equal(known[name], before):
            raise RuleError(
                f"rule {_name(rule)}.{rule.moves} writes into {name}; make new tensors, such as a + b for a.add_(b)"
            )


def _check_returned(rule: Rule, back: Any, p: Tensor, s: Any) -> None:
    what = f"rule {_name(rule)}.{rule.moves}"
    first = "d" if rule.moves == "direction" else "p"
    if not isinstance(back, tuple) or hasattr(back, "_asdict") or len(back) != 2:
        found = type(back).__name__
        raise RuleError(f"{what} must return ({first}, s), s None for a rule without state; it returns a {found}")
    new, after = back
    if not isinstance(new, Tensor) or new.shape != p.shape:
        found = f"a tensor of shape {tuple(new.shape)}" if isinstance(new, Tensor) else repr(new)
        wanted = tuple(p.shape)
        raise RuleError(f"{what}: {first} must be a tensor shaped like the weights, here {wanted}, got {found}")
    if type(after) is not type(s):
        raise RuleError(
            f"{what} must return a state of the kind that init makes, {type(s).__name__}, and returns "
            f"{type(after).__name__}"
        )
    for name, before in _entries(s).items():
        value = getattr(after, name)
        if not isinstance(value, Tensor) or value.shape != before.shape:
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise RuleError(
                f"{what}: the state's '{name}' must stay a tensor of shape {tuple(before.shape)}, got {found}"
            )
