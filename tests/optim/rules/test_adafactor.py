"""Adafactor against its equations and torch."""

import numpy as np
import pytest
import torch

from descend.optim.optimizer import Optimizer
from descend.optim.rules import Adafactor


def rms(x):
    return np.sqrt((x**2).mean()) if x.size else 0.0


def reference(c, eps1, eps2, d):
    def make():
        r = k = V = 0.0

        def step(w, g, t, lr, decay):
            nonlocal r, k, V
            new = t**c
            alpha = max(eps2, rms(w)) * min(lr, 1 / np.sqrt(t))
            if w.ndim > 1:
                r = (1 - new) * r + new * (g**2).mean(-1, keepdims=True)
                k = (1 - new) * k + new * (g**2).mean(-2, keepdims=True)
                estimate = r * k / np.maximum(r.mean(-2, keepdims=True), eps1)
            else:
                V = (1 - new) * V + new * g**2
                estimate = V
            u = g / np.maximum(np.sqrt(estimate), eps1)
            return (1 - lr * decay) * w - alpha * u / max(1.0, rms(u) / d)

        return step

    return make


def test_adafactor(agree):
    agree(Adafactor(-0.6, 1e-3, 1e-2, 1.5), reference(-0.6, 1e-3, 1e-2, 1.5))


def test_torch(as_torch):
    theirs = lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.5)  # noqa: E731
    as_torch(Adafactor(), theirs, lr=0.05, weight_decay=0.5)


@pytest.mark.parametrize("shape", [(7,), (4, 3)])
def test_a_moment_that_forgets_all_knows_a_gradient_far_below_the_last_one(shape):
    """With β₂ = 0 the step is that of this gradient alone, however large the one before was."""
    rule, small = Adafactor(beta2_decay=0.0, d=1e3), torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    stepped = []
    for before in (small, 1e4 * small):
        p = torch.nn.Parameter(torch.ones(shape))
        optimizer = Optimizer([p], rule, lr=0.1, runner="plain")
        for g in (before, small):
            held, p.grad = p.detach().clone(), g.clone()
            optimizer.step()
        stepped.append((p.detach() - held) / held.norm())
    torch.testing.assert_close(*stepped, rtol=2e-6, atol=1e-8)


def test_a_matrix_keeps_a_row_and_a_column():
    state = Adafactor().init(torch.zeros(2, 30, 40))
    assert state.row.shape == (2, 30, 1)
    assert state.column.shape == (2, 1, 40)
    assert state.V is None
