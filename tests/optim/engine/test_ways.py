"""The table of ways is what a step does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from descend.optim.compiler.cache import compiler
from descend.optim.engine import ways
from descend.optim.engine.arena_manager import RUNNERS, ArenaManager
from descend.optim.engine.ways import WAYS, kind_of, ways_of
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, SGLD, Adafactor, Muon, Rule

RULES = list({type(rule): rule for rule in ALL_RULES}.values())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The way that each parameter has gone, by name."""
    found: dict[str, str] = {}
    add, in_place = ArenaManager.add, ArenaManager.step_matrices
    stacks, plain = ways.step_stacks, ways.step_plain

    def seen(way: str, tasks: Any, left: Any) -> Any:
        others = {id(task) for task in left}
        found.update({task.name: way for task in tasks if id(task) not in others})
        return left

    def added(self: Any, tasks: Any, *more: Any) -> Any:
        new = add(self, tasks, *more)
        seen("arena", tasks, [task for task in tasks if id(task.param) not in self.residents])
        return new

    monkeypatch.setattr(ArenaManager, "add", added)
    monkeypatch.setattr(
        ArenaManager,
        "step_matrices",
        lambda self, tasks, settings: seen("in place", tasks, in_place(self, tasks, settings)),
    )
    monkeypatch.setattr(ways, "step_stacks", lambda tasks: seen("stack", tasks, stacks(tasks)))
    monkeypatch.setattr(ways, "step_plain", lambda tasks, seed: seen("alone", tasks, plain(tasks, seed)))
    return found


def stepped(rule: Rule, runner: str, **tensors: Tensor) -> None:
    params = [(name, nn.Parameter(x.clone())) for name, x in tensors.items()]
    for _, p in params:
        p.grad = torch.ones_like(p)
    Optimizer(params, rule, lr=0.1, runner=runner).step()


@pytest.mark.parametrize("runner", ["auto", "blocks", "plain"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_every_rule_goes_the_first_of_its_ways(rule: Rule, runner: str, taken: dict[str, str]) -> None:
    stepped(rule, runner, a=torch.ones(4, 3), b=torch.ones(4, 3), single=torch.ones(5, 2), empty=torch.ones(0, 3))
    first, *rest = (way for way in ways_of(rule, runner) if way != "in place" or compiler() is not None)
    assert taken["a"] == taken["b"] == first
    assert taken["single"] == ("alone" if first == "stack" else first)
    assert taken["empty"] == "alone"
    assert taken["empty"] in (first, *rest)


def test_what_means_leave_goes_as_a_stack(taken: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU until the kernel is compiled."""
    monkeypatch.setattr(ArenaManager, "step_matrices", lambda self, tasks, settings: tasks)
    stepped(Adafactor(), "blocks", a=torch.ones(4, 3), b=torch.ones(4, 3), single=torch.ones(5, 2))
    assert taken == {"a": "stack", "b": "stack", "single": "alone"}


def test_the_table_has_a_row_for_every_kind_and_no_other() -> None:
    assert {kind_of(rule) for rule in RULES} == {*WAYS} - {"whole tensors"}
    assert kind_of(Muon()) == "whole tensors, in stacks"
    assert kind_of(SGLD()) == "elements, norms and noise"
    assert all(ways[-1] == "alone" for ways in WAYS.values())
    assert {ways_of(Muon(), runner) for runner in RUNNERS} == {("stack", "alone"), ("alone",)}
