"""The state of any torch optimizer, by the names of parameters: round trips against uninterrupted training."""

import copy

import pytest
import torch
from torch import nn

from descend.errors import StorageError
from descend.runtime import flatten, unflatten
from descend.train.optimizers.state import OptimizerState, unsharded
from descend.train.param_groups import split_groups

X = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) / 10


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()


def steps(network, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        network(X).square().sum().backward()
        optimizer.step()


def stored(state):
    """As a checkpoint gives it back: tensors apart from JSON."""
    tensors, plain = flatten(state)
    return unflatten(plain, {name: t.clone() for name, t in tensors.items()})


MAKE = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.01, amsgrad=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_run_that_is_continued_ends_in_the_same_bits(make):
    whole = module()
    steps(whole, make(whole.parameters()), 5)
    first = module()
    optimizer = make(first.parameters())
    steps(first, optimizer, 2)
    state = stored(OptimizerState(optimizer, first).state_dict())
    second = copy.deepcopy(first)
    fresh = make(second.parameters())
    OptimizerState(fresh, second).load_state_dict(state)
    steps(second, fresh, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_parameters_are_matched_by_name_whatever_their_order_in_the_groups():
    first = module()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    steps(first, optimizer, 2)
    state = stored(OptimizerState(optimizer, first).state_dict())
    second = copy.deepcopy(first)
    fresh = torch.optim.SGD(reversed(list(second.parameters())), lr=0.1, momentum=0.9)
    OptimizerState(fresh, second).load_state_dict(state)
    for name, p in second.named_parameters():
        expected = optimizer.state[first.get_parameter(name)]["momentum_buffer"]
        assert torch.equal(fresh.state[p]["momentum_buffer"], expected)


def test_groups_that_were_split_are_split_again_with_their_options():
    first = module()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    split_groups(optimizer, [first[1].weight])
    next(g for g in optimizer.param_groups if g["params"][0] is first[1].weight)["lr"] = 0.025
    state = stored(OptimizerState(optimizer, first).state_dict())
    second = module()
    fresh = torch.optim.SGD(second.parameters(), lr=0.5)
    OptimizerState(fresh, second).load_state_dict(state)
    rates = {id(p): group["lr"] for group in fresh.param_groups for p in group["params"]}
    assert {name: rates[id(p)] for name, p in second.named_parameters()} == {
        "0.weight": 0.1,
        "0.bias": 0.1,
        "1.weight": 0.025,
        "1.bias": 0.1,
    }


def test_the_state_of_other_parameters_is_refused_and_nothing_changes():
    first = module()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    steps(first, optimizer, 1)
    state = stored(OptimizerState(optimizer, first).state_dict())
    other = nn.Sequential(nn.Linear(3, 2)).double()
    fresh = torch.optim.SGD(other.parameters(), lr=0.7, momentum=0.9)
    with pytest.raises(StorageError):
        OptimizerState(fresh, other).load_state_dict(state)
    assert not fresh.state
    assert [group["lr"] for group in fresh.param_groups] == [0.7]


def test_values_that_are_not_sharded_stay_the_same_objects():
    tensor = torch.ones(2)
    found = unsharded({"a": {"m": tensor, "step": 3}})
    assert found == {"a": {"m": tensor, "step": 3}}
    assert found["a"]["m"] is tensor


def test_it_is_left_behind_where_a_run_begins_with_a_new_optimizer():
    assert OptimizerState.resets_with_optimizer
