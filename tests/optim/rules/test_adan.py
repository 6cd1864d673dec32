"""Adan against its equations."""

import numpy as np
import pytest
import torch

from descend.optim.rules import Adan


def reference(b1, b2, b3, eps, proximal):
    def make():
        m = n = v = 0.0
        last = None

        def step(w, g, t, lr, decay):
            nonlocal m, n, v, last
            change = np.zeros_like(g) if last is None else g - last
            last = g.copy()
            m, n = b1 * m + (1 - b1) * g, b2 * n + (1 - b2) * change
            v = b3 * v + (1 - b3) * (g + b2 * change) ** 2
            u = (m / (1 - b1**t) + b2 * n / (1 - b2**t)) / (np.sqrt(v / (1 - b3**t)) + eps)
            return (w - lr * u) / (1 + lr * decay) if proximal else w * (1 - lr * decay) - lr * u

        return step

    return make


@pytest.mark.parametrize("proximal", [True, False])
def test_adan(agree, proximal):
    agree(Adan(0.9, 0.8, 0.97, 1e-4, proximal), reference(0.9, 0.8, 0.97, 1e-4, proximal))


def test_a_constant_gradient_moves_by_the_rate(path):
    """No difference, so m̂ and the root of v̂ are both the gradient."""
    g = [torch.tensor([4.0, -0.25], dtype=torch.float64)] * 5
    moved = path(Adan(eps=0.0), torch.zeros(2, dtype=torch.float64), g, [0.1] * 5, 0.0)
    torch.testing.assert_close(moved[-1], torch.tensor([-0.5, 0.5], dtype=torch.float64), rtol=1e-12, atol=1e-12)
