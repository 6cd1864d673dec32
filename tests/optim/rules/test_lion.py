"""Lion against its equations."""

import numpy as np
import torch

from descend.optim.rules import Lion


def reference(b1, b2):
    def make():
        m = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m
            move = np.sign(b1 * m + (1 - b1) * g)
            m = b2 * m + (1 - b2) * g
            return w - lr * move

        return step

    return make


def test_lion(agree):
    agree(Lion(0.9, 0.99), reference(0.9, 0.99))


def test_every_weight_moves_by_the_rate(first):
    w, g = torch.zeros(3, dtype=torch.float64), torch.tensor([1e-9, -5.0, 0.0], dtype=torch.float64)
    assert first(Lion(), w, g, lr=0.25).tolist() == [-0.25, 0.25, 0.0]
