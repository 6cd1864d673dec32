"""The table of named optimizers and a user's own rule in it."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from descend import optim
from descend.errors import RuleError
from descend.optim.rules import RULES, Rule


def test_every_rule_has_a_face_with_its_stated_defaults():
    for name, rule in RULES.items():
        optimizer = optim.create(name, [torch.nn.Parameter(torch.ones(2, 2))])
        group = optimizer.param_groups[0]
        assert type(group["rule"]) is rule
        stated = (rule.default_lr, rule.default_weight_decay, rule.default_decay)
        assert (group["lr"], group["weight_decay"], group["decay"]) == stated
        assert type(optimizer) is getattr(optim, rule.__name__)


def test_names_are_taken_in_any_case():
    assert set(RULES) <= set(optim.names())
    assert type(optim.create("LAMB", [torch.nn.Parameter(torch.ones(2))])) is optim.LAMB
    with pytest.raises(RuleError, match="did you mean 'rmsprop'"):
        optim.create("rmspop", [torch.nn.Parameter(torch.ones(2))])


def test_a_rule_of_ones_own():
    class Memory(NamedTuple):
        m: Tensor

    @optim.register
    @dataclass(frozen=True)
    class Heavy(Rule):
        """p ← p − lr (g + half of the last move)."""

        half: float = 0.5

        def init(self, p: Tensor) -> Memory:
            return Memory(torch.zeros_like(p))

        def direction(self, g: Tensor, s: Memory) -> tuple[Tensor, Memory]:
            d = g + self.half * s.m
            return d, Memory(d)

    w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = optim.create("heavy", [w], lr=1.0)
    for _ in range(2):
        w.grad = torch.ones_like(w)
        optimizer.step()
    assert w.tolist() == [-2.5, -2.5]
    with pytest.raises(RuleError, match="already"):
        optim.register(Heavy)


@pytest.mark.parametrize("name", ["params", "seed", "runner", "reasons", "schedule", "initial_lr", "rule", "name"])
def test_a_field_with_a_name_that_optimizers_keep_is_refused(name):
    body = {"__annotations__": {name: float}, name: 0.5, "direction": lambda self, g: (g, None)}
    rule = dataclass(frozen=True)(type("Takes", (Rule,), body))
    with pytest.raises(RuleError, match=f"Takes has a field '{name}', a name that optimizers keep for themselves"):
        optim.register(rule)
    assert "takes" not in optim.names()


def test_what_is_no_class_is_refused():
    with pytest.raises(RuleError, match="is a rule with its settings; register takes the class Lion"):
        optim.register(optim.rules.Lion())


def test_what_is_no_dataclass_is_refused():
    with pytest.raises(RuleError, match="not a frozen dataclass"):

        @optim.register
        class Plain(Rule):  # pyright: ignore[reportUnusedClass]
            def direction(self, g: Tensor) -> tuple[Tensor, None]:
                return g, None
