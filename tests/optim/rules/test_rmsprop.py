"""RMSProp against its equations and torch."""

import itertools

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import RMSProp


def reference(rho, eps, eps_inside, centered, momentum, rate_inside, limit=None):
    def make():
        n = a = b = 0.0

        def step(w, g, t, lr, decay):
            nonlocal n, a, b
            n = rho * n + (1 - rho) * g**2
            a = rho * a + (1 - rho) * g
            spread = np.maximum(n - a**2, 0) if centered else n
            x = g / (np.sqrt(spread + eps) if eps_inside else np.sqrt(spread) + eps)
            if rate_inside:
                b = momentum * b + lr * x
                w = w - b
            else:
                b = momentum * b + x
                w = w - lr * b
            return w if limit is None else np.clip(w, -limit, limit)

        return step

    return make


@pytest.mark.parametrize(
    ("eps_inside", "centered", "momentum", "rate_inside"),
    [c for c in itertools.product([False, True], [False, True], [0.0, 0.9], [False, True]) if c[2] or not c[3]],
)
def test_all_forms(agree, eps_inside, centered, momentum, rate_inside):
    rule = RMSProp(0.9, 1e-3, eps_inside, centered, momentum, rate_inside)
    agree(rule, reference(0.9, 1e-3, eps_inside, centered, momentum, rate_inside))


def test_clip_weights(agree):
    agree(RMSProp(0.9, 1e-3, clip_weights=0.4), reference(0.9, 1e-3, False, False, 0.0, False, 0.4))


def test_first_direction(first):
    """n₁ = (1 − ρ) g², so the first move is lr / √(1 − ρ) whatever the gradient."""
    g = torch.tensor([-3.0, 0.5], dtype=torch.float64)
    moved = first(RMSProp(0.75, eps=0.0), torch.zeros(2, dtype=torch.float64), g)
    np.testing.assert_allclose(moved.numpy(), -0.1 * np.sign(g.numpy()) / 0.5, rtol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_torch(as_torch, centered, momentum):
    kwargs = {"lr": 0.01, "alpha": 0.95, "centered": centered, "momentum": momentum, "eps": 1e-3}
    theirs = lambda p: torch.optim.RMSprop(p, weight_decay=0.1, **kwargs)  # noqa: E731
    rule = RMSProp(0.95, 1e-3, centered=centered, momentum=momentum)
    as_torch(rule, theirs, tol=1e-11, lr=0.01, weight_decay=0.1)


def test_rate_inside_needs_momentum():
    with pytest.raises(RuleError, match="momentum is 0"):
        RMSProp(rate_inside=True)
