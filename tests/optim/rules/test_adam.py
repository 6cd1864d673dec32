"""Adam and AdamW against their equations and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import Adam, AdamW


def reference(b1, b2, eps, at="outside", correct=True, amsgrad=False, decay_at=None):
    def make():
        m = v = top = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, v, top
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            top = np.maximum(top, v)
            used = top if amsgrad else v
            c1, c2 = (1 - b1**t, 1 - b2**t) if correct else (1.0, 1.0)
            if at == "outside":
                d = m / c1 / (np.sqrt(used / c2) + eps)
            elif at == "inside":
                d = m / c1 / np.sqrt(used / c2 + eps)
            else:
                d = np.sqrt(c2) / c1 * m / (np.sqrt(used) + eps)
            if decay_at is None:
                return w - lr * d
            rate = lr * np.sqrt(c2) / c1 if decay_at != "rate" else lr
            if decay_at == "corrected after":
                w = w - lr * d
                return w - rate * decay * w
            return w - lr * d - rate * decay * w

        return step

    return make


@pytest.mark.parametrize("at", ["outside", "inside", "uncorrected"])
@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("amsgrad", [True, False])
def test_adam(agree, at, correct, amsgrad):
    rule = Adam(0.8, 0.98, 1e-3, at, correct, amsgrad)
    agree(rule, reference(0.8, 0.98, 1e-3, at, correct, amsgrad))


@pytest.mark.parametrize("decay_at", ["rate", "corrected", "corrected after"])
@pytest.mark.parametrize("correct", [True, False])
def test_adamw(agree, decay_at, correct):
    rule = AdamW(0.8, 0.98, 1e-3, "uncorrected", correct, decay_at=decay_at)
    agree(rule, reference(0.8, 0.98, 1e-3, "uncorrected", correct, decay_at=decay_at))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.0), (0.5, 0.9)])
def test_first_direction_is_the_sign_of_the_gradient(first, betas):
    """Bias correction makes d₁ = g / |g|, whatever β₁ and β₂ are."""
    g = torch.tensor([-3.0, 0.5, 0.0], dtype=torch.float64)
    moved = first(Adam(*betas, eps=0.0), torch.zeros(3, dtype=torch.float64), g)
    np.testing.assert_allclose(moved.numpy(), [0.1, -0.1, 0.0], rtol=1e-12)


def test_uncorrected_eps_is_larger_at_first(first):
    """ε beside √v counts 1/√(1 − β₂) times as much at t = 1: with β₂ = 0.99 and ε = 0.1 it is 1 beside √v̂ = 1."""
    w, g = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert first(Adam(0.9, 0.99, 0.1, "uncorrected"), w, g).item() == pytest.approx(-0.1 / 2)
    assert first(Adam(0.9, 0.99, 0.1, "outside"), w, g).item() == pytest.approx(-0.1 / 1.1)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_torch(as_torch, amsgrad):
    theirs = lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.98), eps=1e-3, weight_decay=0.1, amsgrad=amsgrad)  # noqa: E731
    as_torch(Adam(0.8, 0.98, 1e-3, amsgrad=amsgrad), theirs, lr=0.02, weight_decay=0.1)


def test_torchs_adamw_is_both_of_ours(as_torch):
    theirs = lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.5)  # noqa: E731
    as_torch(AdamW(), theirs, lr=0.02, weight_decay=0.5)
    as_torch(Adam(), theirs, lr=0.02, weight_decay=0.5, decay="decoupled")


def test_entries_that_are_not_finite_are_left_alone(path):
    w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    good = torch.tensor([0.5, -0.5], dtype=torch.float64)
    bad = torch.tensor([float("inf"), -0.5], dtype=torch.float64)
    rule = AdamW(skip_nonfinite=True)
    both, one = path(rule, w, [good, bad], [0.1, 0.1], 0.3), path(rule, w, [good], [0.1], 0.3)
    assert both[1][0] == one[0][0]
    assert both[1][1] != one[0][1]


@pytest.mark.parametrize("kwargs", [{"beta1": 1.0}, {"beta2": -0.1}, {"eps": -1e-8}, {"eps_at": "under"}, {"eps": "1"}])
def test_what_cannot_be(kwargs):
    with pytest.raises(RuleError, match=f"Adam: {next(iter(kwargs))}"):
        Adam(**kwargs)
