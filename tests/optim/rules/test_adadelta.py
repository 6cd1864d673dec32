"""AdaDelta against its equations and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import AdaDelta


def reference(rho, eps):
    def make():
        E = D = 0.0

        def step(w, g, t, lr, decay):
            nonlocal E, D
            E = rho * E + (1 - rho) * g**2
            d = np.sqrt(D + eps) / np.sqrt(E + eps) * g
            D = rho * D + (1 - rho) * d**2
            return w - lr * d

        return step

    return make


def test_adadelta(agree):
    agree(AdaDelta(0.95, 1e-3), reference(0.95, 1e-3), lr=1.0)


def test_torch(as_torch):
    theirs = lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.95, eps=1e-3, weight_decay=0.1)  # noqa: E731
    as_torch(AdaDelta(0.95, 1e-3), theirs, lr=0.5, weight_decay=0.1)


def test_eps_makes_the_first_step_possible():
    with pytest.raises(RuleError, match="> 0"):
        AdaDelta(eps=0.0)
