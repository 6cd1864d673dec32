"""SGLD against its equation, and its noise against a posterior that is known."""

import numpy as np
import pytest
import torch

from descend.optim.optimizer import Optimizer
from descend.optim.rules import SGLD


def test_drift(agree):
    agree(SGLD(temperature=0.0), lambda: lambda w, g, t, lr, decay: w - lr / 2 * g)


def test_noise_enters_with_the_root_of_the_rate(agree):
    """The plain loop's noise is 1 everywhere."""
    agree(SGLD(), lambda: lambda w, g, t, lr, decay: w - lr / 2 * g + np.sqrt(lr))


def test_it_samples_the_posterior():
    """For U = w²/2 the chain w ← (1 − ε/2) w + √ε ξ has variance 1/(1 − ε/4) exactly; many chains at once."""
    w = torch.nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    optimizer = Optimizer([w], SGLD(), lr=0.4, runner="plain")
    for _ in range(40):
        w.grad = w.detach().clone()
        optimizer.step()
    assert w.detach().var().item() == pytest.approx(1 / (1 - 0.4 / 4), rel=0.04)
    assert abs(w.detach().mean().item()) < 0.03
