"""The table of what is done to each weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import descend.optim
from descend.errors import RuleError
from descend.optim import groups
from descend.optim.explain import plot
from descend.optim.schedules import PiecewisePolynomial


def test_every_weights_stands_in_the_table_once_with_its_state() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    net[1].weight.requires_grad_(False)
    net[0].weight.data = net[0].weight.data.bfloat16()
    optimizer = descend.optim.Adam(
        [
            {"params": [("w", net[0].weight)], "lr_mult": 0.5},
            {"params": [("b", net[0].bias), ("frozen", net[1].weight)], "rule": descend.optim.rules.SGD(), "lr": 1.0},
        ],
        lr=1e-3,
    )
    w, b, frozen = descend.optim.explain(optimizer).rows
    assert (w.lr, w.state_bytes, w.dtype) == (5e-4, 3 * 12 * 4 + 8, "bfloat16")
    assert (b.lr, b.state_bytes, b.rule[:3]) == (1.0, 8, "SGD")
    assert (frozen.state_bytes, frozen.decided_by) == (0, "frozen")
    text = str(descend.optim.explain(optimizer))
    assert "3 tensors, 1 of them frozen, 18 elements, 160 B of state" in text
    assert not optimizer.state


def test_state_bytes_are_what_a_step_allocates() -> None:
    net = nn.Linear(40, 30)
    for name in descend.optim.names():
        optimizer = descend.optim.create(name, net.named_parameters(), lr=1e-3)
        claimed = sum(row.state_bytes for row in descend.optim.explain(optimizer).rows)
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        held = sum(x.numel() * x.element_size() for entry in optimizer.state.values() for x in entry.values())
        # A number a tensor is kept in float64 whatever precision the rule asks for.
        assert 0 <= held - claimed <= 3 * 4 * 2, name


def test_the_table_says_which_rule_decided_and_draws_the_rate() -> None:
    net = nn.Linear(2, 2)
    optimizer = descend.optim.SGD(groups.split(net, undecayed=["bias"]), lr=lambda step: 1.0 - step / 100)
    text = str(descend.optim.explain(optimizer, steps=100))
    assert "bias: weight_decay=0.0" in text
    assert "rate of group 0, 1" in text
    assert "100 updates" in text


def test_a_plot_rises_where_the_rate_rises() -> None:
    lines = plot([(0, 0.0), (1, 0.5), (2, 1.0)], height=2)
    assert lines[0].endswith("|  █")
    assert lines[1].endswith("| ██")


def test_the_papers_schedule_is_drawn_with_its_points() -> None:
    """Initial, peak and final rate stand at steps 0, 706 and 2,512, exactly."""
    schedule = PiecewisePolynomial(peak=29.0, warmup_steps=706, steps=2512, final=1e-4)
    optimizer = descend.optim.LARS(nn.Linear(2, 2).named_parameters(), lr=schedule)
    explained = descend.optim.explain(optimizer)
    (title, curve), text = explained.curves[0], str(explained)
    assert title == "rate of group 0"
    assert [dict(curve)[step] for step in (0, 706, 2512)] == [0.0, 29.0, 1e-4]
    assert "0 at update 0, highest 29 at 706, 0.0001 at 2,512" in text
    assert "2512 updates" in text
    assert max(len(line) for line in text.splitlines()) < 120


def test_a_long_curve_is_thinned() -> None:
    optimizer = descend.optim.SGD(nn.Linear(2, 2).parameters(), lr=lambda step: 1e6 - step)
    ((_, curve),) = descend.optim.explain(optimizer, steps=1_000_000).curves
    assert (curve[0], curve[-1]) == ((0, 1e6), (1_000_000, 0.0))
    assert len(curve) == 5001


def test_who_is_none_of_ours_is_named() -> None:
    theirs: Any = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(RuleError, match=r"explain takes an optimizer of descend\.optim and got Adam"):
        descend.optim.explain(theirs)


def test_a_schedule_without_a_valid_rate_is_reported_with_the_update():
    optimizer = descend.optim.SGD([torch.zeros(2)], lr=lambda step: float("nan") if step > 5 else 0.1)
    with pytest.raises(RuleError, match="SGD, group 0, schedule at update 6: lr must be a finite number"):
        descend.optim.explain(optimizer, 10)
    with pytest.raises(RuleError, match="curves are at least 1 update long, and steps is -5"):
        descend.optim.explain(descend.optim.SGD([torch.zeros(2)], lr=lambda step: 0.1), -5)
