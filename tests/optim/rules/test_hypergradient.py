"""HypergradientAdam against its equations."""

import numpy as np
import torch

from descend.optim.rules import HypergradientAdam


def reference(h, b1, b2, eps):
    def make():
        m = v = gained = 0.0
        last = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, v, gained, last
            gained = gained + h * np.sum(g * last)
            g = g + eps
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            last = np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + eps)
            return w - (lr + gained) * last

        return step

    return make


def test_hypergradient_adam(agree):
    agree(HypergradientAdam(1e-3, 0.9, 0.99, 1e-4), reference(1e-3, 0.9, 0.99, 1e-4))


def test_the_rate_rises_while_the_gradient_keeps_its_direction(path):
    g = [torch.ones(4, dtype=torch.float64)] * 3
    rule = HypergradientAdam(0.01, eps=0.0)
    moved = path(rule, torch.zeros(4, dtype=torch.float64), g, [0.1] * 3, 0.0)
    # by hand: every direction is 1, so the rate gains 0.01 · 4 a step after the first
    np.testing.assert_allclose([w[0].item() for w in moved], [-0.1, -0.1 - 0.14, -0.1 - 0.14 - 0.18], rtol=1e-12)
