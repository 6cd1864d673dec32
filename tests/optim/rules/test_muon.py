"""Muon against its equations, singular vectors and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import Muon
from descend.optim.rules.muon import orthogonalize

A, B, C = 3.4445, -4.7750, 2.0315


def newton_schulz(u, steps, eps):
    """The iteration acts on singular values alone: s ← a s + b s³ + c s⁵."""
    left, s, right = np.linalg.svd(u, full_matrices=False)
    s = s / max(np.linalg.norm(s), eps)
    for _ in range(steps):
        s = A * s + B * s**3 + C * s**5
    return left * s @ right


def reference(mu, nesterov, adjust):
    def make():
        b = 0.0

        def step(w, g, t, lr, decay):
            nonlocal b
            b = mu * b + (1 - mu) * g
            u = (1 - mu) * g + mu * b if nesterov else b
            matrix = u.reshape(1, -1) if u.ndim < 2 else u.reshape(u.shape[0], -1)
            n, m = matrix.shape
            if matrix.size == 0:
                return w
            f = max(1.0, n / m) ** 0.5 if adjust == "original" else 0.2 * max(n, m) ** 0.5
            return w - lr * f * newton_schulz(matrix, 5, 1e-7).reshape(w.shape)

        return step

    return make


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon(agree, nesterov, adjust):
    agree(Muon(0.9, nesterov, adjust=adjust), reference(0.9, nesterov, adjust), lr=0.001)


def test_singular_values_come_near_one():
    u = torch.randn(20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = torch.linalg.svdvals(orthogonalize(u, (A, B, C), 5, 1e-7))
    assert s.min() > 0.6
    assert s.max() < 1.3


def test_torch():
    """Over one matrix and five steps, to the rounding of bfloat16 (one part in 256), in which torch iterates."""
    from descend.optim.optimizer import Optimizer

    random = torch.Generator().manual_seed(0)
    w = torch.randn(6, 4, generator=random)
    ours, other = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.clone())
    left = Optimizer([ours], Muon(bfloat16=True), lr=0.02, weight_decay=0.1, decay="decoupled")
    right = torch.optim.Muon([other], lr=0.02, weight_decay=0.1)
    for _ in range(5):
        ours.grad = torch.randn(6, 4, generator=random)
        other.grad = ours.grad.clone()
        left.step()
        right.step()
    torch.testing.assert_close(ours, other, rtol=0, atol=2e-3)


def test_no_iteration_is_refused():
    with pytest.raises(RuleError, match="ns_steps"):
        Muon(ns_steps=0)
