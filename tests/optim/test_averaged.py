"""The weights to evaluate, where a rule trains at another point: schedule-free SGD and AdamW."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import descend.optim
from descend.errors import RuleError
from descend.optim.rules import RULES

RATES = {"schedulefreesgd": 0.5, "schedulefreeadamw": 0.05}


def step(optimizer: Any, weights: list[nn.Parameter], t: int) -> None:
    random = torch.Generator().manual_seed(t)
    for p in weights:
        p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64).to(p.dtype)
    optimizer.step()


def by_hand(start: torch.Tensor, steps: int) -> torch.Tensor:
    """The average of schedule-free SGD at a constant rate: the mean of all z, from three sequences of the paper."""
    x = z = start
    for t in range(1, steps + 1):
        g = torch.randn(start.shape, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        z = z - 0.5 * g
        x = x + (z - x) / t
    return x


@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_the_average_stands_in_the_weights_within_the_block(runner: str) -> None:
    p = nn.Parameter(torch.arange(6.0, dtype=torch.float64))
    start = p.detach().clone()
    optimizer = descend.optim.ScheduleFreeSGD([p], lr=0.5, runner=runner)
    with optimizer.averaged():
        assert torch.equal(p, start)  # no update yet
    for t in range(1, 6):
        step(optimizer, [p], t)
    trained = p.detach().clone()
    with optimizer.averaged():
        torch.testing.assert_close(p.detach(), by_hand(start, 5), rtol=1e-12, atol=1e-12)
        inside = p.detach().clone()
        with optimizer.averaged():
            assert torch.equal(p, inside)
        assert torch.equal(p, inside)
    assert torch.equal(p, trained)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", RATES)
def test_looking_at_the_average_changes_no_bit_of_the_run(name: str, dtype: torch.dtype, runner: str) -> None:
    ends: list[list[torch.Tensor]] = []
    for look in (False, True):
        weights = [nn.Parameter(torch.full(shape, 0.7, dtype=dtype)) for shape in ((3, 2), (5,), ())]
        optimizer = descend.optim.create(name, weights, lr=RATES[name], runner=runner)
        for t in range(6):
            step(optimizer, weights, t)
            if look:
                with pytest.raises(KeyError), optimizer.averaged():
                    raise KeyError
        ends.append([p.detach() for p in weights])
    assert all(torch.equal(p, q) for p, q in zip(*ends, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_other_rules_evaluate_where_they_train(name: str) -> None:
    p = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3))
    optimizer = descend.optim.create(name, [p])
    for t in range(1, 4):
        step(optimizer, [p], t)
    before = p.detach().clone()
    with optimizer.averaged():
        assert torch.equal(p, before) is (name not in RATES)
    assert torch.equal(p, before)


def test_nothing_is_trained_or_loaded_within_the_block() -> None:
    p = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = descend.optim.ScheduleFreeSGD([p], lr=0.5)
    step(optimizer, [p], 1)
    saved = copy.deepcopy(optimizer.state_dict())
    with optimizer.averaged():
        with pytest.raises(RuleError, match=r"a step within averaged\(\)"):
            optimizer.step()
        with pytest.raises(RuleError, match=r"load_state_dict within averaged\(\)"):
            optimizer.load_state_dict(saved)
    step(optimizer, [p], 2)


@pytest.mark.parametrize("name", RATES)
def test_a_run_goes_on_from_saved_weights_and_state(name: str) -> None:
    whole, part = (nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    reference = descend.optim.create(name, [("w", whole)], lr=RATES[name])
    first = descend.optim.create(name, [("w", part)], lr=RATES[name])
    for t in range(3):
        step(reference, [whole], t)
        step(first, [part], t)
    second = descend.optim.create(name, [("w", part)], lr=RATES[name])
    second.load_state_dict(first.state_dict())
    for t in range(3, 6):
        step(reference, [whole], t)
        step(second, [part], t)
    with reference.averaged(), second.averaged():
        assert torch.equal(whole, part)
