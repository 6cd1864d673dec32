"""Signum and SignSGD against their equations."""

import numpy as np
import torch

from descend.optim.rules import SignSGD, Signum


def test_signsgd(agree):
    agree(SignSGD(), lambda: lambda w, g, t, lr, decay: w - lr * np.sign(g))


def reference(mu, wd_lh):
    def make():
        m = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m
            m = mu * m + (1 - mu) * g
            return (1 - lr * wd_lh) * w - lr * np.sign(m)

        return step

    return make


def test_signum(agree):
    agree(Signum(0.9), reference(0.9, 0.0))
    agree(Signum(0.8, wd_lh=0.3), reference(0.8, 0.3))


def test_a_zero_gradient_moves_nothing(first):
    w = torch.tensor([1.0, -2.0], dtype=torch.float64)
    assert torch.equal(first(SignSGD(), w, torch.zeros_like(w)), w)
