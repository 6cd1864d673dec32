"""LAMB against its equations."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import LAMB


def reference(b1, b2, eps, correct=True, lower=None, upper=None):
    def make():
        m = v = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, v
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            c1, c2 = (1 - b1**t, 1 - b2**t) if correct else (1.0, 1.0)
            u = (m / c1) / (np.sqrt(v / c2) + eps) + decay * w
            length = np.linalg.norm(w)
            length = length if lower is None else max(length, lower)
            length = length if upper is None else min(length, upper)
            size = np.linalg.norm(u)
            return w - lr * (length / size if length > 0 and size > 0 else 1.0) * u

        return step

    return make


@pytest.mark.parametrize("correct", [True, False])
def test_lamb(agree, correct):
    agree(LAMB(0.8, 0.98, 1e-3, correct), reference(0.8, 0.98, 1e-3, correct))


def test_bounds_limit_the_length_of_the_weights(agree):
    rule = LAMB(0.8, 0.98, 1e-3, lower_bound=0.5, upper_bound=2.0)
    agree(rule, reference(0.8, 0.98, 1e-3, True, 0.5, 2.0))


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_first_step_has_the_length_of_the_weights_times_the_rate(first, correct, size):
    w = torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64)
    g = size * torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    moved = first(LAMB(bias_correction=correct), w, g, lr=0.01, decay=0.1) - w
    assert moved.norm().item() == pytest.approx(0.01 * 13.0, rel=1e-12)


def test_weights_that_start_at_zero_move(first):
    w, g = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    assert first(LAMB(eps=0.0), w, g, lr=0.01).tolist() == pytest.approx([-0.01, 0.01, -0.01])


def test_bounds_may_not_cross():
    with pytest.raises(RuleError, match="above upper_bound"):
        LAMB(lower_bound=2.0, upper_bound=1.0)
