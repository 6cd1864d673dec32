"""MARS against its equations."""

import numpy as np
import pytest
import torch

from descend.optim.rules import MARS, AdamW


def reference(b1, b2, gamma, eps, base, amsgrad):
    def make():
        m = v = top = 0.0
        last = None

        def step(w, g, t, lr, decay):
            nonlocal m, v, top, last
            before = np.zeros_like(g) if last is None else last
            last = g.copy()
            c = g + gamma * b1 / (1 - b1) * (g - before)
            c = c / max(1.0, float(np.linalg.norm(c.ravel())))
            m = b1 * m + (1 - b1) * c
            if base == "lion":
                return w - lr * (np.sign(m) + decay * w)
            v = b2 * v + (1 - b2) * c * c
            top = np.maximum(top, v)
            root = np.sqrt((top if amsgrad else v) / (1 - b2**t)) + eps
            return w - lr * (m / (1 - b1**t) / root + decay * w)

        return step

    return make


@pytest.mark.parametrize(("base", "amsgrad"), [("adamw", False), ("adamw", True), ("lion", False)])
@pytest.mark.parametrize("gamma", [0.025, 0.4])
def test_mars(agree, gamma, base, amsgrad):
    agree(MARS(0.9, 0.98, gamma, 1e-3, base, amsgrad), reference(0.9, 0.98, gamma, 1e-3, base, amsgrad))


def test_without_the_difference_it_is_adamw_on_small_gradients(path):
    """Gradients of norm below 1 are not scaled."""
    g = [0.1 * torch.rand(3, dtype=torch.float64) for _ in range(20)]
    w = torch.randn(3, dtype=torch.float64)
    one, other = (path(rule, w, g, [0.01] * 20, 0.1) for rule in (MARS(gamma=0.0), AdamW(0.95, 0.99)))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
