import copy

import pytest
import torch
from torch import nn

import descend.optim
from descend.train.optimizers.phased import PhasedOptimizer
from descend.train.param_groups import set_option


def two(kinds=(torch.optim.Adam, descend.optim.SGD)):
    torch.manual_seed(0)
    nets = nn.Linear(3, 2), nn.Linear(3, 2)
    options = ({"lr": 0.1}, {"lr": 0.2, **({"momentum": 0.9} if kinds[1] is descend.optim.SGD else {})})
    parts = {
        name: kind(net.parameters(), **given) for name, kind, net, given in zip("ab", kinds, nets, options, strict=True)
    }
    return nets, PhasedOptimizer(parts)


def step(nets, optimizer, name, scale=1.0):
    optimizer.zero_grad()
    optimizer.begin(name)
    sum(net(torch.full((2, 3), scale)).square().sum() for net in nets).backward()
    optimizer.step()


def test_only_the_part_that_was_begun_is_updated():
    nets, optimizer = two()
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    step(nets, optimizer, "b")
    assert torch.equal(nets[0].weight, before[0]["weight"])
    assert nets[0].weight.grad is None
    assert not torch.equal(nets[1].weight, before[1]["weight"])
    assert all(p.requires_grad for net in nets for p in net.parameters())
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("kinds", [(torch.optim.Adam, descend.optim.SGD), (descend.optim.LAMB, torch.optim.AdamW)])
def test_a_saved_state_goes_on_to_the_same_bits(kinds):
    nets, optimizer = two(kinds)
    for number in range(5):
        step(nets, optimizer, "aab"[number % 3], number + 1.0)
    others, other = two(kinds)
    for net, twin in zip(nets, others, strict=True):
        twin.load_state_dict(net.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(5):
        step(nets, optimizer, "ab"[number % 2])
        step(others, other, "ab"[number % 2])
    assert all(torch.equal(net.weight, twin.weight) for net, twin in zip(nets, others, strict=True))
    saved = optimizer.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1], [2, 3]]


def test_a_group_that_is_split_is_of_the_same_part():
    nets, optimizer = two()
    set_option(optimizer, [nets[1].bias], "lr", 0.5)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert (rates[id(nets[1].bias)], rates[id(nets[1].weight)]) == (0.5, 0.2)
    before = nets[1].bias.detach().clone()
    step(nets, optimizer, "b")
    torch.testing.assert_close(nets[1].bias.detach(), before - 0.5 * nets[1].bias.grad)


def test_copies_have_parts_of_their_own():
    nets, optimizer = two()
    twins, twin = copy.deepcopy((nets, optimizer))
    step(twins, twin, "a")
    assert not torch.equal(twins[0].weight, nets[0].weight)
    assert list(twin.state) != list(optimizer.state)
