"""Mistakes in a user's own rule are reported, with what to write instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import descend.optim
from descend.errors import RuleError
from descend.optim import Rule
from descend.optim.rule_check import check_rule
from descend.optim.rules import ALL_RULES


class One(NamedTuple):
    q: Tensor


class Two(NamedTuple):
    a: Tensor
    b: Tensor


class Step(NamedTuple):
    step: Tensor


def made(**body: Any) -> Any:
    return dataclass(frozen=True)(type("Own", (Rule,), body))()


def with_state(direction: Any, init: Any = lambda self, p: One(torch.zeros_like(p))) -> Any:
    return made(init=init, direction=direction)


def without(direction: Any) -> Any:
    return made(direction=direction)


MISTAKES: list[tuple[Any, str]] = [
    (with_state(lambda self, g, s: (g, s), lambda self, p: ()), r"init must return None or a NamedTuple .* a tuple"),
    (with_state(lambda self, g, s: (g, s), lambda self, p: p), r"init must return None or a NamedTuple .* a Tensor"),
    (with_state(lambda self, g, s: (g, s), lambda self, p: One(0.0)), "its 'q' is 0.0"),
    (with_state(lambda self, g, s: (g, s), lambda self: None), "init cannot be run .* TypeError"),
    (with_state(lambda self, g, s: (g, s), lambda self, p: Step(p)), "'step' in its state is a name that the engine"),
    (with_state(lambda self, g, s: (g, s), lambda self, p: One(torch.zeros(3))), r"shaped like the weights .* \(3,\)"),
    (with_state(lambda self, g, s: g), r"must return \(d, s\).* it returns a Tensor"),
    (with_state(lambda self, g, s: (g, Two(s.q, s.q))), "the kind that init makes, One, and returns Two"),
    (with_state(lambda self, g, s: (g, None)), "the kind that init makes, One, and returns NoneType"),
    (
        with_state(lambda self, g, s: (g, One(g.sum()))),
        r"'q' must stay .* \(2, 3\), got .* \(\)",
    ),
    (without(lambda self, g: (g.mul_(2), None)), "writes into g"),
    (without(lambda self, g: (1.0, None)), r"d must be a tensor shaped like the weights, here \(2, 3\), got 1.0"),
    (without(lambda self, g: (g.flatten()[:1], None)), r"got a tensor of shape \(1,\)"),
    (without(lambda self, g: (g + nowhere, None)), "NameError: name 'nowhere' is not defined"),  # noqa: F821
    (without(lambda self, g, noise: (g + noise, None)), "direction cannot be run .* TypeError"),
    (without(lambda self, g: (g if g > 0 else -g, None)), "direction cannot be run .* ambiguous"),
    (made(update=lambda self, g, p: p - g), r"update must return \(p, s\)"),
]


@pytest.mark.parametrize(("rule", "words"), MISTAKES, ids=[words[:30] for _, words in MISTAKES])
def test_a_mistake_is_reported_when_an_optimizer_is_built(rule: Any, words: str) -> None:
    with pytest.raises(RuleError, match=f"(?s)rule Own.*{words}"):
        descend.optim.Optimizer([torch.nn.Parameter(torch.ones(2, 2))], rule, lr=0.1)


def norm_and_noise(self: Any, g: Tensor, p: Tensor, s: One, norm: Any, total: Any, noise: Any) -> Any:
    q = 0.9 * s.q + g
    return q / (norm(q) + 1e-6) * norm(p) + 0.01 * total(g * p) * noise(), One(q)


def previous(self: Any, g: Tensor, p: Tensor, s: One, lr: Tensor) -> Any:
    return p - lr * g + 0.5 * (p - s.q), One(p)


@pytest.mark.parametrize(
    "rule",
    [
        *ALL_RULES,
        with_state(norm_and_noise),
        made(init=lambda self, p: One(p.clone()), update=previous),
        with_state(lambda self, g, s, t: (g / t, One(s.q + 1)), lambda self, p: One(torch.zeros(()))),
        made(whole_tensor=True, direction=lambda self, g: (g - g.mean(), None)),
    ],
    ids=repr,
)
def test_a_sound_rule_is_let_pass(rule: Any) -> None:
    check_rule(rule)


def test_what_is_no_rule_cannot_be_registered() -> None:
    with pytest.raises(RuleError, match=r"is not a Rule: write  class Alone\(Rule\)"):
        descend.optim.register(dataclass(frozen=True)(type("Alone", (), {})))
    with pytest.raises(RuleError, match="is not a frozen dataclass"):
        descend.optim.register(dataclass(type("Open", (Rule,), {"direction": lambda self, g: (g, None)})))
    body = {"direction": lambda self, g: (g, None), "__annotations__": {"lr": "float"}, "lr": field(default=0.1)}
    with pytest.raises(RuleError, match="field 'lr', which is an option of every optimizer"):
        descend.optim.register(dataclass(frozen=True)(type("Rated", (Rule,), body)))


def test_a_text_that_only_numbers_can_run_is_run_plainly() -> None:
    rule = without(lambda self, g, t: (g * float(t), None))
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = descend.optim.Optimizer([p], rule, lr=0.1)
    p.grad = torch.ones(3)
    with pytest.warns(UserWarning, match="runs one tensor at a time: its text cannot be read"):
        optimizer.step()
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), -0.3))


def of_rows(axis: int) -> Any:
    """A rule that scales by the largest element along an axis."""
    return made(
        whole_tensor=True, takes_stacks=True, direction=lambda self, g: (g / g.abs().amax(axis, keepdim=True), None)
    )


def test_a_rule_that_takes_stacks_treats_each_tensor_as_alone() -> None:
    check_rule(of_rows(-1))
    check_rule(made(whole_tensor=True, takes_stacks=True, direction=lambda self, g, norm: (g / norm(g), None)))
    for rule in (
        of_rows(0),
        made(whole_tensor=True, takes_stacks=True, direction=lambda self, g: (g / g.norm(), None)),
        with_state_of_stacks(lambda self, g, s: (g, One(g + g.sum()))),
    ):
        with pytest.raises(RuleError, match=r"must give each of two tensors the (p|q) that it gives it alone"):
            check_rule(rule)
    with pytest.raises(RuleError, match="of two tensors at once cannot be run"):
        check_rule(made(whole_tensor=True, takes_stacks=True, direction=lambda self, g: (g @ g.t() @ g, None)))


def with_state_of_stacks(direction: Any) -> Any:
    return made(
        whole_tensor=True, takes_stacks=True, init=lambda self, p: One(torch.zeros_like(p)), direction=direction
    )


@pytest.mark.parametrize("body", [{}, {"whole_tensor": True}], ids=["elements", "noise"])
def test_what_cannot_be_stacked_is_refused_where_it_is_defined(body: dict[str, Any]) -> None:
    with pytest.raises(RuleError, match="must be one of whole tensors without noise, got takes_stacks = True"):
        made(takes_stacks=True, direction=lambda self, g, noise: (g + noise(), None), **body)
