"""AdaBelief against its equations."""

import numpy as np
import pytest
import torch

from descend.optim.rules import AdaBelief


def reference(b1, b2, eps, at, correct):
    def make():
        m = s = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, s
            m = b1 * m + (1 - b1) * g
            s = b2 * s + (1 - b2) * (g - m) ** 2 + eps
            c1, c2 = (1 - b1**t, 1 - b2**t) if correct else (1.0, 1.0)
            if at == "outside":
                return w - lr * (m / c1) / (np.sqrt(s / c2) + eps)
            return w - lr * np.sqrt(c2) / c1 * m / (np.sqrt(s) + eps)

        return step

    return make


@pytest.mark.parametrize("at", ["outside", "uncorrected"])
@pytest.mark.parametrize("correct", [True, False])
def test_adabelief(agree, at, correct):
    agree(AdaBelief(0.8, 0.98, 1e-4, at, correct), reference(0.8, 0.98, 1e-4, at, correct))


def test_a_steady_gradient_is_believed(path):
    """s holds the gradient's spread, not its size: under a constant gradient steps are far longer than Adam's."""
    g = [torch.ones(1, dtype=torch.float64)] * 50
    moved = path(AdaBelief(eps=1e-8), torch.zeros(1, dtype=torch.float64), g, [0.01] * 50, 0.0)
    assert moved[-1].item() < -50 * 0.01 * 1.5
