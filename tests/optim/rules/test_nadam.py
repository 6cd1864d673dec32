"""Nadam against its equations and torch."""

import numpy as np
import torch

from descend.optim.rules import Nadam


def reference(b1, b2, eps, psi):
    def make():
        m = v = 0.0
        product = 1.0

        def mu(t):
            return b1 * (1 - 0.5 * 0.96 ** (t * psi))

        def step(w, g, t, lr, decay):
            nonlocal m, v, product
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            product *= mu(t)
            ahead = (1 - mu(t)) * g / (1 - product) + mu(t + 1) * m / (1 - product * mu(t + 1))
            return w - lr * ahead / (np.sqrt(v / (1 - b2**t)) + eps)

        return step

    return make


def test_nadam(agree):
    agree(Nadam(0.85, 0.98, 1e-3, 0.5), reference(0.85, 0.98, 1e-3, 0.5))


def test_torch(as_torch):
    """To the precision of torch's product, which it keeps in float32."""
    theirs = lambda p: torch.optim.NAdam(p, lr=0.02, momentum_decay=0.5, weight_decay=0.1)  # noqa: E731
    as_torch(Nadam(schedule_decay=0.5), theirs, tol=1e-6, lr=0.02, weight_decay=0.1)


def test_the_product_is_one_number_a_tensor():
    state = Nadam().init(torch.zeros(3, 2))
    assert state.product.shape == ()
    assert state.product.dtype == torch.float64
