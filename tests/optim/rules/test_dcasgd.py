"""DCASGD against its equations."""

import pytest
import torch

from descend.optim.rules import DCASGD


def reference(kappa, mu, in_square):
    def make():
        b, before = 0.0, None

        def step(w, g, t, lr, decay):
            nonlocal b, before
            before = w if before is None else before
            G = g + decay * w if in_square else g
            d = g + decay * w + kappa * G**2 * (w - before)
            b = mu * b + lr * d
            before = w
            return w - b

        return step

    return make


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("in_square", [True, False])
def test_dcasgd(agree, momentum, in_square):
    agree(DCASGD(0.5, momentum, in_square), reference(0.5, momentum, in_square), lr=0.01)


def test_a_delayed_gradient_is_carried_to_the_present_weight(path):
    """For the loss h x²/2 with κ g² = h, the second gradient, taken at the old weight, is corrected to the new one."""
    w, g = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    moved = path(DCASGD(0.5), w, [g, g], [0.1, 0.1], 0.0)
    # by hand: h = 0.5 · 4 = 2, the weight went from 1 to 0.8, so 2 becomes 2 − 2 · 0.2 = 1.6
    assert moved[1].item() == pytest.approx(0.8 - 0.1 * 1.6)
