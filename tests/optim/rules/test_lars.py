"""LARS against its equations."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import LARS


def reference(mu=0.9, trust=1e-3, eps=0.0, inside=True, nesterov=False, damp=0.0, of="parts", correct=False, clip=None):
    def make():
        b, before = 0.0, None

        def step(w, g, t, lr, decay):
            nonlocal b, before
            length, size = np.linalg.norm(w), np.linalg.norm(g + decay * w if of == "sum" else g)
            below = size + eps + (0.0 if of == "sum" else decay * length)
            ratio = trust * length / below if length > 0 and size > 0 else 1.0
            u = ratio * ((g if clip is None else np.clip(g, -clip, clip)) + decay * w)
            kept = mu * (lr / before if correct and before else 1.0)
            before = lr
            u = lr * u if inside else u
            b = kept * b + (1 - damp) * u
            move = u + mu * b if nesterov else b
            return w - (move if inside else lr * move)

        return step

    return make


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_lars(agree, inside, nesterov):
    rule = LARS(0.9, 0.01, 1e-4, rate_inside=inside, nesterov=nesterov)
    agree(rule, reference(0.9, 0.01, 1e-4, inside, nesterov), lr=1.0)


def test_its_variants(agree):
    agree(LARS(0.9, 0.01, ratio_of="sum", clip_inside=0.3), reference(0.9, 0.01, of="sum", clip=0.3), lr=1.0)
    agree(LARS(0.9, 0.01, momentum_correction=True), reference(0.9, 0.01, correct=True), lr=1.0)
    agree(LARS(0.9, 0.01, dampening=0.2, rate_inside=False), reference(0.9, 0.01, inside=False, damp=0.2), lr=1.0)
    agree(LARS(0.0, 0.01), reference(0.0, 0.01), lr=1.0)


def test_first_step_is_trust_times_the_length_of_the_weights(first):
    """Without decay ‖p₁ − p₀‖ = lr c ‖p₀‖, whatever the size of the gradient."""
    w = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    for size in (1e-6, 1.0, 1e6):
        g = size * torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
        moved = (first(LARS(trust=0.02), w, g, lr=0.5) - w).norm().item()
        assert moved == pytest.approx(0.5 * 0.02 * 5.0, rel=1e-12)


def test_zero_gradient(first):
    """The published formula with ‖g‖ = 0 is c/λ; MXNet takes 1."""
    w, g = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    assert first(LARS(trust=0.02), w, g, lr=1.0, decay=0.1)[0].item() == pytest.approx(1 - 0.1)
    moved = first(LARS(trust=0.02, one_at_zero_gradient=False), w, g, lr=1.0, decay=0.1)
    assert moved[0].item() == pytest.approx(1 - 0.02)


def test_settings_of_no_momentum():
    with pytest.raises(RuleError, match="momentum, which is 0"):
        LARS(momentum=0.0, nesterov=True)
