"""LANS against its equations."""

import numpy as np
import pytest
import torch

from descend.optim.rules import LANS


def reference(b1, b2, eps, lower=None, upper=None, sequential=False, clip=None):
    def ratio(length, u):
        size = np.linalg.norm(u)
        return length / size if length > 0 and size > 0 else 1.0

    def make():
        m = v = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, v
            size = np.linalg.norm(g)
            g = g / size if size > 0 else g
            g = g if clip is None else np.clip(g, -clip, clip)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            root = np.sqrt(v / (1 - b2**t)) + eps
            length = np.linalg.norm(w)
            length = length if lower is None else min(max(length, lower), upper)
            u1 = m / (1 - b1**t) / root + decay * w
            half = b1 * ratio(length, u1) * u1
            u2 = g / root + decay * (w - lr * half if sequential else w)
            return w - lr * (half + (1 - b1) * ratio(length, u2) * u2)

        return step

    return make


@pytest.mark.parametrize("sequential", [False, True])
def test_lans(agree, sequential):
    agree(LANS(0.8, 0.98, 1e-3, sequential=sequential), reference(0.8, 0.98, 1e-3, sequential=sequential))


def test_bounds_and_clipping(agree):
    rule = LANS(0.8, 0.98, 1e-3, 0.5, 2.0, clip_inside=0.3)
    agree(rule, reference(0.8, 0.98, 1e-3, 0.5, 2.0, clip=0.3))


def test_a_gradient_of_zeros_is_no_accident(first):
    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert torch.equal(first(LANS(), w, torch.zeros_like(w)), w)
    # with decay both halves are λ p stretched to ‖p‖: the step is lr p
    assert first(LANS(), w, torch.zeros_like(w), lr=0.1, decay=0.01).tolist() == pytest.approx([2.7, 3.6])
