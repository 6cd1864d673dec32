"""What a rule must be, and what is true of all of them."""

import math
from dataclasses import dataclass, fields, is_dataclass

import pytest
import torch

from descend.errors import RuleError
from descend.optim import rules
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, RULES, Rule
from descend.optim.rules.base import quotient


def test_a_rule_defines_one_move():
    with pytest.raises(RuleError, match="exactly one of direction and update"):

        @dataclass(frozen=True)
        class Neither(Rule):  # pyright: ignore[reportUnusedClass]
            pass


def test_a_rule_asks_for_known_things():
    with pytest.raises(RuleError, match="asks for 'grad', which no engine provides"):

        @dataclass(frozen=True)
        class Wrong(Rule):  # pyright: ignore[reportUnusedClass]
            def direction(self, grad):
                return grad, None


def test_quotient_is_zero_where_the_denominator_is():
    a, b = torch.tensor([1.0, 0.0, 6.0]), torch.tensor([0.0, 0.0, 3.0])
    assert quotient(a, b).tolist() == [0.0, 0.0, 2.0]


def test_every_rule_is_in_both_tables():
    assert {type(rule) for rule in ALL_RULES} == set(RULES.values())
    assert {rule.__name__ for rule in RULES.values()} <= set(rules.__all__)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.__name__)
def test_every_rule_shows_its_mathematics(rule):
    """Equations, shapes, units and source at the top of its file; every option explained."""
    import sys

    top = sys.modules[rule.__module__].__doc__
    for word in ("Shapes:", "Units:", "Source:", "="):
        assert word in top
    assert is_dataclass(rule)
    for field in fields(rule):
        assert f"{field.name}:" in rule.__doc__, f"{rule.__name__} does not explain {field.name}"


@pytest.mark.parametrize("value", [math.nan, -math.inf, "x", None, (), 1j], ids=repr)
@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.__name__)
def test_what_is_no_number_is_refused_in_words_wherever_one_is_wanted(rule, value):
    for field in fields(rule):
        if isinstance(field.default, (int, float, tuple)) and not isinstance(field.default, bool):
            with pytest.raises(RuleError, match=field.name):
                rule(**{field.name: value})


def shaped(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zeros_stay_finite(rule, decay):
    """Zero weights and zero gradients, then one gradient: no rule divides 0 by 0."""
    w = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((), (3,), (2, 3))]
    optimizer = Optimizer(w, rule, lr=0.1, weight_decay=decay, runner="plain")
    for t in range(4):
        for p in w:
            p.grad = torch.zeros_like(p) if t < 3 else torch.ones_like(p)
        optimizer.step()
        assert all(p.isfinite().all() for p in w)


@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
def test_the_order_of_tensors_changes_nothing(rule):
    shapes = [(4, 3), (5,), (2, 3, 2)]
    ends = []
    for order in ([0, 1, 2], [2, 0, 1]):
        w = {i: torch.nn.Parameter(shaped(shapes[i], i)) for i in range(3)}
        named = [(f"w{i}", w[i]) for i in order]
        optimizer = Optimizer(named, rule, lr=0.05, weight_decay=0.01, runner="plain")
        for t in range(5):
            for i, p in w.items():
                p.grad = shaped(shapes[i], 10 * t + i)
            optimizer.step()
        ends.append(w)
    assert all(torch.equal(ends[0][i], ends[1][i]) for i in range(3))


@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
def test_a_transposed_weight_is_the_same_weight(rule):
    ends = []
    for transposed in (False, True):
        start = shaped((4, 3), 0)
        p = torch.nn.Parameter(start.T.contiguous().T if transposed else start)
        optimizer = Optimizer([("w", p)], rule, lr=0.05, weight_decay=0.01, runner="plain")
        for t in range(5):
            p.grad = shaped((4, 3), 10 + t)
            optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
