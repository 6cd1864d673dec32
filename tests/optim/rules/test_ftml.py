"""FTML against its equations, and with β₁ = 0 against Adam without momentum."""

import numpy as np
import torch

from descend.optim.rules import FTML


def reference(b1, b2, eps):
    def make():
        v = d = z = 0.0

        def step(w, g, t, lr, decay):
            nonlocal v, d, z
            v = b2 * v + (1 - b2) * g**2
            new = (1 - b1**t) / lr * (np.sqrt(v / (1 - b2**t)) + eps)
            z = b1 * z + (1 - b1) * g - (new - b1 * d) * w
            d = new
            return -z / d

        return step

    return make


def test_ftml(agree):
    agree(FTML(0.6, 0.98, 1e-2), reference(0.6, 0.98, 1e-2), lr=0.01)


def test_without_beta1_it_is_rmsprop_with_bias_correction(path):
    grads = [torch.tensor([x], dtype=torch.float64) for x in (1.0, -2.0, 0.5)]
    moved = path(FTML(0.0, 0.9, 1e-8), torch.ones(1, dtype=torch.float64), grads, [0.1] * 3, 0.0)
    v, w = 0.0, 1.0
    for t, (g, p) in enumerate(zip((1.0, -2.0, 0.5), moved, strict=True), 1):
        v = 0.9 * v + 0.1 * g * g
        w -= 0.1 * g / (np.sqrt(v / (1 - 0.9**t)) + 1e-8)
        np.testing.assert_allclose(p.item(), w, rtol=1e-12)


def test_what_has_seen_no_gradient_stays(first):
    w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.equal(first(FTML(eps=0.0), w, torch.zeros_like(w)), w)
    assert torch.equal(first(FTML(), w, torch.ones_like(w), lr=0.0), w)
