"""SGD and NAG against their equations and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import NAG, SGD


def reference(momentum=0.0, dampening=0.0, nesterov=False, inside=False):
    def make():
        b = None

        def step(w, g, t, lr, decay):
            nonlocal b
            if momentum == 0:
                return w - lr * g
            u = lr * g if inside else g
            b = u if b is None else momentum * b + (1 - dampening) * u
            move = u + momentum * b if nesterov else b
            return w - move if inside else w - lr * move

        return step

    return make


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.3])
@pytest.mark.parametrize("inside", [False, True])
def test_momentum(agree, nesterov, dampening, inside):
    rule = SGD(0.9, dampening, nesterov, rate_inside=inside)
    agree(rule, reference(0.9, dampening, nesterov, inside))


def test_plain(agree):
    agree(SGD(), reference())


@pytest.mark.parametrize("inside", [False, True])
def test_nag_is_nesterov_momentum(agree, inside):
    agree(NAG(0.8, rate_inside=inside), reference(0.8, 0.0, True, inside))


def test_the_place_of_the_rate_only_shows_when_it_changes(path):
    g = [torch.tensor([1.0], dtype=torch.float64)] * 3
    w = torch.zeros(1, dtype=torch.float64)
    outside, inside = SGD(0.9), SGD(0.9, rate_inside=True)
    same = [0.1] * 3
    assert path(outside, w, g, same, 0.0)[-1] == pytest.approx(path(inside, w, g, same, 0.0)[-1].item())
    # by hand, rate 1 then 0: outside stops at once, inside continues with 0.9 of the first move
    assert [x.item() for x in path(outside, w, g[:2], [1.0, 0.0], 0.0)] == [-1.0, -1.0]
    assert [x.item() for x in path(inside, w, g[:2], [1.0, 0.0], 0.0)] == [-1.0, -1.9]


def test_sutskevers_form_is_the_look_ahead_form(path):
    """w = θ + μ v, where the gradient is taken at w: v ← μ v − lr g, θ ← θ + v (Sutskever et al., eqs. 3 and 4)."""
    random = np.random.default_rng(0)
    grads, mu = random.normal(size=(20, 5)), 0.9
    w0 = random.normal(size=5)
    theta, v = w0.copy(), np.zeros(5)
    ours = path(NAG(mu), torch.tensor(w0), [torch.tensor(g) for g in grads], [0.1] * 20, 0.0)
    for g, w in zip(grads, ours, strict=True):
        v = mu * v - 0.1 * g
        theta = theta + v
        np.testing.assert_allclose(w.numpy(), theta + mu * v, rtol=1e-12)


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True}],
    ids=str,
)
def test_torch(as_torch, kwargs):
    theirs = lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=0.1, **kwargs)  # noqa: E731
    as_torch(SGD(**kwargs), theirs, lr=0.05, weight_decay=0.1)


@pytest.mark.parametrize(
    "kwargs", [{"nesterov": True}, {"dampening": 1.5}, {"momentum": 1.0}, {"momentum": -0.1}], ids=str
)
def test_what_cannot_be(kwargs):
    with pytest.raises(RuleError, match=r"SGD: (nesterov|dampening|momentum)"):
        SGD(**kwargs)
