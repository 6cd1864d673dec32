"""AdEMAMix against its equations."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import AdamW, AdEMAMix


def half_life_of(beta):
    return np.log(0.5) / np.log(beta + 1e-8)


def reference(b1, b2, b3, alpha, eps, alpha_steps, beta_steps):
    def make():
        m = n = v = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, n, v
            slow, share = b3, alpha
            if beta_steps and t < beta_steps:  # half-lives from that of β₁ to that of β₃
                slow = 0.5 ** (1 / np.interp(t, [0, beta_steps], [half_life_of(b1), half_life_of(b3)]))
            if alpha_steps and t < alpha_steps:
                share = alpha * t / alpha_steps
            m, n, v = b1 * m + (1 - b1) * g, slow * n + (1 - slow) * g, b2 * v + (1 - b2) * g * g
            mixed = m / (1 - b1**t) + share * n
            return w - lr * (mixed / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w)

        return step

    return make


@pytest.mark.parametrize("warmups", [(0, 0), (20, 30), (100, 7)])
@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_ademamix(agree, b1, warmups):
    numbers = (b1, 0.98, 0.995, 3.0, 1e-4)
    agree(AdEMAMix(*numbers, *warmups), reference(*numbers, *warmups))


def test_without_the_slow_mean_it_is_adamw(path):
    g = [torch.randn(4, 3, dtype=torch.float64) for _ in range(20)]
    w = torch.randn(4, 3, dtype=torch.float64)
    one, other = (path(rule, w, g, [0.01] * 20, 0.1) for rule in (AdEMAMix(alpha=0.0), AdamW()))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_warm_up_counts_updates():
    with pytest.raises(RuleError, match=r"AdEMAMix: alpha_warmup must be an integer >= 0, got 2\.5"):
        AdEMAMix(alpha_warmup=2.5)  # pyright: ignore[reportArgumentType]
