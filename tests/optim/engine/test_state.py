"""State that a user writes into is used or refused, by every runner; weights that were replaced as well."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from system_needs import COMPILED
from torch import Tensor

import descend.optim
from descend.errors import RuleError
from descend.optim.engine.state import State, StateEntry

RUNNERS = ["plain", "blocks", COMPILED]


def optimizer(runner: str, *shapes: tuple[int, ...], **options: Any) -> tuple[Any, list[Tensor]]:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes or ((3,), (4, 5))]
    for p in params:
        p.grad = torch.randn(p.shape, generator=random)
    named = [(f"w{i}", p) for i, p in enumerate(params)]
    return descend.optim.SGD(named, lr=0.1, momentum=0.5, runner=runner, **options), params


@pytest.mark.parametrize(
    "write",
    [
        lambda e: e.__setitem__("a", 1),
        lambda e: e.update(a=1),
        lambda e: e.setdefault("a", 1),
        lambda e: e.pop("b"),
        lambda e: e.popitem(),
        lambda e: e.clear(),
        lambda e: e.__delitem__("b"),
        lambda e: e.__ior__({"a": 1}),
    ],
)
def test_every_way_to_write_is_noticed(write: Any) -> None:
    state = State()
    p = torch.zeros(1)
    state[p] = {"b": 2}
    state.changes.seen = True
    assert state[p] == {"b": 2}
    assert state.changes.seen
    write(state[p])
    assert not state.changes.seen


def test_copies_are_apart_and_pickles_hold_plain_dicts() -> None:
    state = State()
    p = torch.zeros(1)
    state[p]["b"] = torch.ones(1)
    other = copy.deepcopy(state)
    (q,) = other
    state.changes.seen = other.changes.seen = True
    other[q]["b"] = torch.zeros(1)
    assert state.changes.seen
    assert state[p]["b"].item() == 1
    assert type(pickle.loads(pickle.dumps(state[p]))) is dict
    assert isinstance(other[q], StateEntry)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_replaced_entry_is_used(runner: str) -> None:
    ours, (p, _) = optimizer(runner)
    ours.step()
    ours.step()
    before, g = p.detach().clone(), p.grad
    assert g is not None
    ours.state[p]["b"] = torch.full((3,), 7.0)
    ours.step()
    torch.testing.assert_close(p.detach(), before - 0.1 * (0.5 * 7.0 + g))
    ours.state[p] = {}
    before = p.detach().clone()
    ours.step()
    torch.testing.assert_close(p.detach(), before - 0.1 * g)
    assert ours.state[p]["step"] == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_memory_and_counts_that_were_replaced_in_place_are_used(runner: str) -> None:
    ours, (p, q) = optimizer(runner)
    ours.step()
    ours.state[p]["b"].data = torch.full((3,), 7.0)
    before, g = p.detach().clone(), p.grad
    assert g is not None
    ours.step()
    torch.testing.assert_close(p.detach(), before - 0.1 * (0.5 * 7.0 + g))
    ours.state[q]["step"].fill_(40.0)
    ours.step()
    assert ours.state[q]["step"] == 41
    assert ours.state[p]["step"] == 3


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_count_that_was_set_decides_the_bias_correction(runner: str) -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    ours = descend.optim.Adam([p], lr=1.0, runner=runner)
    ours.step()
    ours.state[p]["step"].fill_(1e6)
    before = p.detach().clone()
    ours.step()  # nothing is corrected any more: m = 0.19, v = 0.001999
    torch.testing.assert_close(p.detach(), before - 0.19 / 0.001999**0.5, rtol=1e-5, atol=0)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_state_may_be_replaced_as_a_whole(runner: str) -> None:
    ours, (p, q) = optimizer(runner)
    ours.step()
    ours.state = {p: {"step": torch.tensor(3.0), "b": torch.zeros(3)}}
    before, g = p.detach().clone(), p.grad
    assert g is not None
    ours.step()
    torch.testing.assert_close(p.detach(), before - 0.1 * g)
    assert [ours.state[p]["step"], ours.state[q]["step"]] == [4, 1]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(("value", "words"), [(torch.zeros(2), r"\(2,\)"), (None, "nothing"), ("x", "'x'")])
def test_an_entry_that_cannot_be_used_is_refused_by_name(runner: str, value: object, words: str) -> None:
    ours, (_, q) = optimizer(runner)
    ours.step()
    ours.state[q]["b"] = value
    with pytest.raises(RuleError, match=rf"the state 'b' of 'w1' must be a tensor of shape \(4, 5\), got {words}"):
        ours.step()


@pytest.mark.parametrize("runner", RUNNERS)
def test_weights_with_other_memory_are_used(runner: str) -> None:
    ours, (p, q) = optimizer(runner)
    ours.step()
    p.data = torch.ones(3)
    b, untouched = ours.state[p]["b"].clone(), q.detach().clone()
    assert p.grad is not None
    assert q.grad is not None
    ours.step()
    torch.testing.assert_close(p.detach(), 1 - 0.1 * (0.5 * b + p.grad))
    assert not torch.equal(q, untouched)


@pytest.mark.parametrize("runner", RUNNERS)
def test_weights_put_in_the_place_of_others_are_trained(runner: str) -> None:
    ours, (p, q) = optimizer(runner)
    ours.step()
    new = torch.nn.Parameter(torch.zeros(3))
    new.grad = torch.ones(3)
    old = p.detach().clone()
    ours.param_groups[0]["params"][0] = new
    ours.step()
    assert new.tolist() == pytest.approx([-0.1] * 3)
    assert torch.equal(p, old)
    assert ours.state[q]["step"] == 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_list_of_another_length_or_with_a_tensor_twice_is_refused(runner: str) -> None:
    ours, (p, _) = optimizer(runner)
    ours.step()
    ours.param_groups[0]["params"].append(torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(RuleError, match=r"group 0: holds 3 weights and held 2 .* use add_param_group"):
        ours.step()
    ours.param_groups[0]["params"][1:] = [p]
    with pytest.raises(RuleError, match="the same weights appear twice"):
        ours.step()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_group_may_be_taken_out_and_come_back(runner: str, named: bool) -> None:
    """The others are trained and saved as before, each at its own rate."""
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (3, 2, 2)]
    groups: list[dict[str, object]] = [
        {"params": [(f"w{i}", p)] if named else [p], "lr": lambda t, i=i: 0.1 * (i + 1)} for i, p in enumerate(weights)
    ]
    ours = descend.optim.SGD(groups, momentum=0.5, runner=runner)
    for p in weights:
        p.grad = torch.ones_like(p)
    ours.step()
    first = ours.param_groups.pop(0)
    ours.step()
    assert [p[0].item() for p in weights] == pytest.approx([0.9, 1 - 0.2 * 2.5, 1 - 0.3 * 2.5])
    saved = ours.state_dict()
    assert list(saved["state"]) == [0, 1]
    assert weights[0] in ours.state
    ours.load_state_dict(copy.deepcopy(saved))
    ours.add_param_group(first)
    ours.param_groups.pop()  # before any step
    with ours.averaged():
        pass
    ours.step()
    assert weights[0][0].item() == pytest.approx(0.9)


@pytest.mark.parametrize("runner", RUNNERS)
def test_weights_that_come_back_go_on_from_the_state_they_had(runner: str) -> None:
    ours, (p, _) = optimizer(runner)
    ours.step()
    b, before, names = ours.state[p]["b"].clone(), p.detach().clone(), ours.param_groups[0]["param_names"]
    rest = ours.param_groups[0]["params"].pop(0), names.pop(0)
    ours.step()
    assert torch.equal(p, before)
    ours.add_param_group({"params": [rest[::-1]]})
    assert p.grad is not None
    ours.step()
    torch.testing.assert_close(p.detach(), before - 0.1 * (0.5 * b + p.grad))


def test_a_saved_state_holds_plain_dicts() -> None:
    ours, _ = optimizer("blocks")
    ours.step()
    assert {type(entry) for entry in ours.state_dict()["state"].values()} == {dict}
