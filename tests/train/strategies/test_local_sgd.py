"""Local SGD and DiLoCo against a float64 replay of the papers' algorithms; on one rank, and on two in tests/ranks."""

import functools

import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=DRAW, dtype=torch.float64)
Y = torch.randn(24, 1, generator=DRAW, dtype=torch.float64)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.05)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def fit(rule, **settings):
    made = {"optimizer": ADAMW, "batch_size": 4, "stop": descend.Epochs(2), "shuffle": False, **settings}
    return descend.fit(network(), "mse", (X, Y), strategy=rule, **made)


def replayed(steps, lr, momentum, nesterov):
    """12 inner steps on one rank, with the outer step after every `steps` of them."""
    module = network()
    inner = ADAMW(module.parameters())
    outer = [p.detach().clone() for p in module.parameters()]
    speed = [torch.zeros_like(p) for p in outer]
    for number in range(12):
        some = slice(4 * (number % 6), 4 * (number % 6) + 4)
        inner.zero_grad()
        nn.functional.mse_loss(module(X[some]), Y[some]).backward()
        inner.step()
        if (number + 1) % steps == 0:
            for p, x, m in zip(module.parameters(), outer, speed, strict=True):
                delta = x - p.detach()
                m.mul_(momentum).add_(delta)
                x.sub_(delta + momentum * m if nesterov else m, alpha=lr)
                p.data.copy_(x)
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("steps", "lr", "momentum", "nesterov"), [(1, 1.0, 0.0, True), (3, 0.7, 0.9, True), (4, 0.5, 0.8, False)]
)
def test_one_rank_makes_the_updates_of_the_paper(steps, lr, momentum, nesterov):
    rule = descend.LocalSGD(steps=steps, outer_lr=lr, outer_momentum=momentum, nesterov=nesterov)
    found = fit(rule)
    for name, expected in replayed(steps, lr, momentum, nesterov).items():
        torch.testing.assert_close(found.weights[name], expected, rtol=1e-12, atol=1e-14)


def test_without_an_outer_optimizer_one_rank_is_plain_training():
    plain = fit(None)
    local = fit(descend.LocalSGD(steps=5))
    for name, w in plain.weights.items():
        torch.testing.assert_close(local.weights[name], w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_run_that_goes_on_within_a_window_ends_with_the_same_bits(cut, tmp_path):
    rule = descend.LocalSGD(steps=3, outer_lr=0.7, outer_momentum=0.9)
    whole = fit(rule, run_dir=tmp_path / "whole", resume=True)
    fit(rule, run_dir=tmp_path / "cut", resume=True, stop=descend.Steps(cut))
    again = fit(rule, run_dir=tmp_path / "cut", resume=True)
    assert all(torch.equal(w, again.weights[name]) for name, w in whole.weights.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be an integer >= 1"),
        ({"outer_lr": 0.0}, "outer_lr must be a finite number > 0"),
        ({"outer_momentum": 1.0}, "outer_momentum must be"),
        ({"nesterov": "no"}, "nesterov must be True or False"),
        ({"step": 3}, "did you mean 'steps'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        descend.LocalSGD(**settings)


def test_a_run_has_one_strategy():
    with pytest.raises(ConfigurationError, match="each is a strategy, and a run has one"):
        fit(descend.LocalSGD(), gradient_compression="sign")
    with pytest.raises(ConfigurationError, match="strategy must be a strategy such as"):
        fit("local")
