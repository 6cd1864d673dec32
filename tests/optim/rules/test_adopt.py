"""ADOPT against its equations."""

import numpy as np
import pytest
import torch

from descend.optim.rules import ADOPT


def reference(b1, b2, eps, clip, decoupled):
    def make():
        m, v = 0.0, None

        def step(w, g, t, lr, decay):
            nonlocal m, v
            g = g if decoupled else g + decay * w
            if v is None:
                v = g * g
                return w
            u = g / np.maximum(np.sqrt(v), eps)
            if clip:
                bound = (t - 1) ** 0.25
                u = np.minimum(np.maximum(u, -bound), bound)
            m = b1 * m + (1 - b1) * u
            v = b2 * v + (1 - b2) * g * g
            return w - lr * m - (lr * decay * w if decoupled else 0.0)

        return step

    return make


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_adopt(agree, clip, decoupled):
    agree(ADOPT(0.8, 0.99, 0.2, clip, decoupled), reference(0.8, 0.99, 0.2, clip, decoupled))


def test_the_first_gradient_moves_nothing_and_decays_nothing(path):
    w = torch.tensor([1.0, -2.0], dtype=torch.float64)
    g = [torch.tensor([3.0, 0.5], dtype=torch.float64)] * 2
    first, second = path(ADOPT(decoupled=True), w, g, [0.1, 0.1], 0.5)
    assert torch.equal(first, w)
    # u = g / |g| = 1 at the second, of which the mean takes a tenth; the decay takes 0.1 · 0.5
    torch.testing.assert_close(second, w * 0.95 - 0.1 * 0.1, rtol=1e-12, atol=1e-12)
