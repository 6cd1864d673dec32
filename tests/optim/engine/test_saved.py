"""State dicts under all that may differ between writer and reader."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

import descend.optim
from descend.errors import RuleError

SHAPES = {"a": (3,), "b": (2, 4), "c": (), "d": (70,)}


def optimizer(names: list[str], runner: str = "blocks", steps: int = 0, **options: Any) -> Any:
    """With weights and gradients that depend on the name alone."""
    params: dict[str, torch.nn.Parameter] = {}
    for name in names:
        random = torch.Generator().manual_seed(ord(name))
        params[name] = torch.nn.Parameter(torch.randn(SHAPES[name], generator=random))
        params[name].grad = torch.randn(SHAPES[name], generator=random)
    ours: Any = descend.optim.Adam(params.items(), runner=runner, **options)
    for _ in range(steps):
        ours.step()
    return ours


def state(ours: Any) -> dict[str, Any]:
    (group,) = ours.param_groups
    return {name: dict(ours.state[p]) for name, p in zip(group["param_names"], group["params"], strict=True)}


@profile(max_examples=10, deadline=None)
@given(order=st.permutations(list(SHAPES)), writer=st.sampled_from(["plain", "blocks"]), steps=st.integers(0, 3))
def test_state_follows_names_in_any_order(order: list[str], writer: str, steps: int) -> None:
    one, other = optimizer(list(SHAPES), writer, steps), optimizer(order, "plain")
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    torch.testing.assert_close(state(other), state(one), rtol=0, atol=0)
    assert other.updates == steps


def test_a_file_of_it_needs_no_code(tmp_path: Any) -> None:
    one = optimizer(list(SHAPES), steps=2, lr=lambda step: 0.1)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other = optimizer(list(SHAPES), lr=lambda step: 0.2)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(state(other), state(one), rtol=0, atol=0)


def test_what_is_loaded_is_apart_from_what_was_saved() -> None:
    one, other = optimizer(["a"], steps=1), optimizer(["a"])
    other.load_state_dict(one.state_dict())
    before = copy.deepcopy(state(one))
    other.step()
    torch.testing.assert_close(state(one), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["a", "b", "c"], r"d +nothing +state"), (["a", "b", "c", "d"], r"d +state +nothing")],
)
def test_missing_and_extra_names_stand_in_the_table(names: list[str], words: str) -> None:
    written = optimizer([n for n in SHAPES if n != "d"] if len(names) == 4 else list(SHAPES), steps=1)
    reader = optimizer(names, steps=2)
    before = copy.deepcopy(state(reader))
    with pytest.raises(RuleError, match=words):
        reader.load_state_dict(written.state_dict())
    torch.testing.assert_close(state(reader), before, rtol=0, atol=0)
    reader.load_state_dict(written.state_dict(), strict=False)
    assert state(reader)["a"]["step"] == 1
    assert reader.updates == 1


def test_another_rule_or_form_of_decay_is_refused() -> None:
    written = optimizer(["a"], steps=1).state_dict()
    p = torch.nn.Parameter(torch.zeros(3))
    lion: Any = descend.optim.Lion([("a", p)])
    with pytest.raises(RuleError, match=r"a +Lion, decay decoupled +Adam, decay coupled"):
        lion.load_state_dict(written)


def test_groups_whose_options_differ_are_not_joined() -> None:
    p, q = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    two: Any = descend.optim.Adam([{"params": [("a", p)], "lr": 0.1}, {"params": [("b", q)], "lr": 0.2}])
    joined: Any = descend.optim.Adam([("a", p), ("b", q)])
    with pytest.raises(RuleError, match="saved groups 0, 1, whose options differ"):
        joined.load_state_dict(two.state_dict())
