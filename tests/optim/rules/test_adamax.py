"""Adamax against its equations and torch."""

import numpy as np
import pytest
import torch

from descend.optim.rules import Adamax


def reference(b1, b2, eps, inside):
    def make():
        m = u = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, u
            m = b1 * m + (1 - b1) * g
            u = np.maximum(b2 * u, np.abs(g) + (eps if inside else 0.0))
            return w - lr / (1 - b1**t) * m / (u + (0.0 if inside else eps))

        return step

    return make


@pytest.mark.parametrize("inside", [False, True])
def test_adamax(agree, inside):
    agree(Adamax(0.8, 0.97, 1e-3, inside), reference(0.8, 0.97, 1e-3, inside))


def test_torch(as_torch):
    theirs = lambda p: torch.optim.Adamax(p, lr=0.03, betas=(0.8, 0.97), eps=0.1, weight_decay=0.1)  # noqa: E731
    as_torch(Adamax(0.8, 0.97, 0.1, eps_inside=True), theirs, lr=0.03, weight_decay=0.1)


def test_a_zero_gradient_moves_nothing_without_eps(first):
    w, g = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, -4.0], dtype=torch.float64)
    assert first(Adamax(eps=0.0), w, g).tolist() == pytest.approx([1.0, 1.1])
