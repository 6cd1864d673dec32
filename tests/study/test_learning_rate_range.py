import functools
import math
import random
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
Y = (X @ torch.arange(15.0).reshape(5, 3).sin()).argmax(1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 3))


def find(module, optimizer=None, **more):
    optimizer = optimizer or functools.partial(torch.optim.SGD, momentum=0.9)
    settings = {"optimizer": optimizer, "batch_size": 10, "lowest": 1e-4, "highest": 100.0, "steps": 60, **more}
    return descend.find_learning_rate(module, "cross_entropy", (X, Y), **settings)


def test_the_loss_falls_and_then_diverges():
    found = find(net())
    assert found.diverged
    assert len(found.rates) == len(found.losses) == len(found.smoothed) < 60
    ratios = [b / a for a, b in zip(found.rates, found.rates[1:], strict=False)]
    assert ratios == [pytest.approx(1e6 ** (1 / 59))] * len(ratios)
    assert found.losses[0] == pytest.approx(math.log(3), abs=0.5)
    assert 1e-3 < found.steepest < found.lowest < found.rates[-1]
    assert f"falls fastest at {found.steepest:.3g}" in repr(found)


def test_losses_are_those_of_a_plain_loop():
    """Full batches, so that the order of samples plays no part."""
    module = nn.Linear(5, 3).double()
    twin = nn.Linear(5, 3).double()
    twin.load_state_dict(module.state_dict())
    data = X.double(), Y
    optimizer = functools.partial(torch.optim.SGD, lr=0.5)
    found = descend.find_learning_rate(
        module, "cross_entropy", data, optimizer=optimizer, batch_size=40, lowest=1e-3, highest=1.0, steps=8
    )
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.0)
    mean = 0.0
    for i, rate in enumerate(found.rates):
        by_hand.param_groups[0]["lr"] = rate
        by_hand.zero_grad()
        loss = nn.functional.cross_entropy(twin(data[0]), Y)
        loss.backward()
        by_hand.step()
        mean = 0.9 * mean + 0.1 * float(loss.detach())
        assert found.losses[i] == pytest.approx(float(loss.detach()), rel=1e-12)
        assert found.smoothed[i] == pytest.approx(mean / (1 - 0.9 ** (i + 1)), rel=1e-12)
    assert len(found.rates) == 8
    assert not found.diverged


def test_everything_is_put_back():
    module = net()
    module[1].eval()
    module[0].weight.grad = torch.ones(8, 5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    places = [p.data_ptr() for p in module.parameters()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    find(module, functools.partial(descend.optim.AdamW, lr=1e-3), workers=0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [p.data_ptr() for p in module.parameters()] == places
    assert torch.equal(module[0].weight.grad, torch.ones(8, 5))
    assert module[4].weight.grad is None
    assert (module[0].training, module[1].training) == (True, False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def test_groups_keep_their_ratio():
    seen = []

    class Seen(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    module = nn.Linear(5, 3)
    find(module, lambda params: Seen(descend.optim.groups.layerwise(module, 1.0, lr=0.1)), steps=5, highest=1e-3)
    both = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    seen.clear()
    find(both, lambda params: Seen(descend.optim.groups.layerwise(both, 0.5, lr=0.1), lr=0.1), steps=5, highest=1e-3)
    assert [pair[0] / pair[1] for pair in seen] == [pytest.approx(0.5)] * 5
    assert [pair[1] for pair in seen] == [pytest.approx(1e-4 * 10 ** (i / 4)) for i in range(5)]


def test_the_picture(tmp_path):
    found = find(net(), seed=3)
    found.save(tmp_path / "rates.svg")
    root = ET.fromstring((tmp_path / "rates.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join("".join(element.itertext()) for element in root.iter())
    assert "learning rate" in words
    assert f"falls fastest, {found.steepest:.2g}" in words
    assert found._repr_svg_() == found.svg()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lowest": 0.0}, "lowest must be a finite number > 0"),
        ({"highest": 1e-9}, "highest must be above lowest"),
        ({"steps": 2}, "steps must be an integer >= 3"),
        ({"stop": None}, "stop has no meaning in a range test"),
        ({"optimizer": functools.partial(descend.optim.SGD, lr=lambda step: 0.1)}, "is a schedule"),
        ({"batch_sise": 3}, "batch_sise"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_changed(more, words):
    module = net()
    before = module[0].weight.detach().clone()
    with pytest.raises(ConfigurationError, match=words):
        find(module, **more)
    assert torch.equal(module[0].weight, before)
