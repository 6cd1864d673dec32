"""FTRL-proximal against its equations, and its closed form against a numerical minimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from descend.optim.rules import FTRL


def reference(l1, beta):
    def make():
        z = n = 0.0

        def step(w, g, t, lr, decay):
            nonlocal z, n
            new = n + g**2
            z = z + g - (np.sqrt(new) - np.sqrt(n)) / lr * w
            n = new
            return np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / lr + decay))

        return step

    return make


def test_ftrl(agree):
    agree(FTRL(0.3, 0.5), reference(0.3, 0.5))


def test_it_is_the_minimum_that_the_paper_defines(path):
    """argmin Σ g w + λ₁|w| + λ₂w²/2 + ½ Σ σₛ(w − wₛ)², with Σ σₛ up to t equal to (β + √n)/lr."""
    grads, lr, l1, l2, beta = [1.0, -0.4, 0.8], 0.5, 0.1, 0.2, 1.0
    series = [torch.tensor([g], dtype=torch.float64) for g in grads]
    ours = path(FTRL(l1, beta), torch.zeros(1, dtype=torch.float64), series, [lr] * 3, l2)
    seen, weights = 0.0, [0.0]
    sigmas = []
    for g in grads:
        sigmas.append((np.sqrt(seen + g * g) - np.sqrt(seen)) / lr)
        seen += g * g
        k = len(sigmas)

        def regret(w, k=k):
            past = sum(g * w for g in grads[:k]) + l1 * abs(w) + l2 * w * w / 2 + beta / lr * w * w / 2
            return past + sum(s * (w - old) ** 2 for s, old in zip(sigmas, weights, strict=False)) / 2

        weights.append(minimize_scalar(regret, bounds=(-5, 5), method="bounded", options={"xatol": 1e-12}).x)
    np.testing.assert_allclose([w.item() for w in ours], weights[1:], atol=1e-6)


def test_a_rate_of_zero_changes_nothing(path):
    w, g = torch.tensor([2.0], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    held = path(FTRL(), w, [g, g], [0.0, 0.1], 0.0)
    assert held[0].item() == 2.0
    assert held[1].item() == pytest.approx(path(FTRL(), w, [g], [0.1], 0.0)[0].item())
