"""One step of an arena by the interpreter, against NumPy."""

import numpy as np
import pytest
import torch

import descend.optim
from descend.optim.engine import blocks
from descend.optim.engine.blocks import ArenaStep, step_arena

SIZES = [3, 200, 64]


def optimizer(name, groups, **options):
    made = descend.optim.create(name, groups, runner="blocks", **options)
    made.step()
    return made, made._arenas


def parameters(seed=0):
    random = torch.Generator().manual_seed(seed)
    made = [torch.nn.Parameter(torch.randn(n, generator=random, dtype=torch.float64)) for n in SIZES]
    for p in made:
        p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64)
    return made


def again(made, manager, **change):
    """A second step of the only arena, by itself."""
    settings = made._groups.settings.read(made.param_groups, made.updates)
    (active,) = manager.begin_step(settings, made.state)
    step_arena(ArenaStep(active, settings, manager._traces(settings)[0], 0, **change))


@pytest.mark.parametrize("chunk", [1, 3, 2**12])
def test_the_size_of_a_chunk_changes_nothing(chunk, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK", chunk)
    params = parameters()
    starts = [p.detach().numpy().copy() for p in params]
    made, manager = optimizer("lamb", params, lr=0.1, beta1=0.0, beta2=0.0, weight_decay=0.0)
    again(made, manager)
    for p, w in zip(params, starts, strict=True):
        g = p.grad.numpy()
        for _ in range(2):  # β = 0: d = g / (|g| + ε), and the step has the norm of the parameter
            d = g / (np.abs(g) + 1e-6)
            w = w - 0.1 * np.linalg.norm(w) / np.linalg.norm(d) * d
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-10)


def test_each_group_has_its_own_numbers():
    params = parameters()
    starts = [p.detach().clone() for p in params]
    groups = [{"params": params[:1], "lr": 0.5}, {"params": params[1:], "weight_decay": 0.25}]
    _, manager = optimizer("sgd", groups, lr=0.1)
    assert len(manager.arenas) == 1
    for p, w, (lr, decay) in zip(params, starts, [(0.5, 0.0), (0.1, 0.25), (0.1, 0.25)], strict=True):
        torch.testing.assert_close(p.detach(), w - lr * (p.grad + decay * w), rtol=1e-13, atol=0)


def test_an_absent_parameter_keeps_its_numbers():
    params = parameters()
    made, manager = optimizer("hypergradientadam", params)
    before = {key: x.clone() for key, x in made.state[params[1]].items()}
    params[1].grad = None
    again(made, manager)
    for key, x in made.state[params[1]].items():
        assert torch.equal(x, before[key]), key
    assert [int(made.state[p]["step"]) for p in params] == [2, 1, 2]
