import pytest
import torch

import descend
from descend.train.param_groups import options_of, set_each, set_option, split_groups


def weights(count=4):
    draw = torch.Generator().manual_seed(0)
    return {f"w{i}": torch.nn.Parameter(torch.randn(3, generator=draw)) for i in range(count)}


def step(parameters, optimizer, steps=1):
    for _ in range(steps):
        for i, p in enumerate(parameters.values()):
            p.grad = torch.full_like(p, i + 1.0) + p.detach()
        optimizer.step()


MAKERS = {
    "torch": lambda some, **o: torch.optim.Adam(some, lr=0.1, **o),
    "descend": lambda some, **o: descend.optim.Adam(some, lr=0.1, runner="blocks", **o),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_cutting_groups_changes_no_update(make):
    cut, whole = weights(), weights()
    first, second = make(cut.items()), make(whole.items())
    step(cut, first, 2)
    step(whole, second, 2)
    groups = split_groups(first, [cut["w1"], cut["w3"]])
    assert [len(group["params"]) for group in groups] == [2]
    assert len(first.param_groups) == 2
    step(cut, first, 2)
    step(whole, second, 2)
    for name, p in cut.items():
        torch.testing.assert_close(p, whole[name], rtol=0, atol=0)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_options_by_weights_are_those_of_separate_optimizers(make):
    together, apart = weights(), weights()
    optimizer = make(together.items())
    step(together, optimizer)
    set_option(optimizer, [together["w0"]], "lr", 0.3)
    set_each(optimizer, {together["w1"]: 0.4, together["w2"]: 0.5}, "lr")
    set_each(optimizer, {together["w1"]: 0.6}, "lr")
    assert {name: options_of(optimizer, "lr")[id(p)] for name, p in together.items()} == {
        "w0": 0.3,
        "w1": 0.6,
        "w2": 0.5,
        "w3": 0.1,
    }
    step(together, optimizer)
    for rate, (name, p) in zip((0.3, 0.6, 0.5, 0.1), apart.items(), strict=True):
        alone = make([(name, p)])
        p.grad = torch.full_like(p, int(name[1]) + 1.0) + p.detach()
        alone.step()
        alone.param_groups[0]["lr"] = rate
        p.grad = torch.full_like(p, int(name[1]) + 1.0) + p.detach()
        alone.step()
        torch.testing.assert_close(p, together[name], rtol=0, atol=0)
