"""Rprop against its equations and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import Rprop


def test_rprop(agree):
    def make():
        before = step_size = None

        def step(w, g, t, lr, decay):
            nonlocal before, step_size
            step_size = np.full_like(w, lr) if step_size is None else step_size
            before = np.zeros_like(w) if before is None else before
            same = np.sign(g * before)
            step_size = np.clip(step_size * np.where(same > 0, 1.3, np.where(same < 0, 0.6, 1.0)), 1e-3, 0.2)
            before = np.where(same < 0, 0.0, g)
            return w - np.sign(before) * step_size

        return step

    agree(Rprop(0.6, 1.3, 1e-3, 0.2), make, decays=(0.0,))


def test_torch(as_torch):
    theirs = lambda p: torch.optim.Rprop(p, lr=0.02, etas=(0.6, 1.4), step_sizes=(1e-3, 0.05))  # noqa: E731
    as_torch(Rprop(0.6, 1.4, 1e-3, 0.05), theirs, lr=0.02)


def test_steps_that_do_not_grow_are_refused():
    with pytest.raises(RuleError, match="eta_plus must be a finite number > 1"):
        Rprop(eta_plus=0.9)
