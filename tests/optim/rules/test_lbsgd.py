"""LBSGD against its description."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import LBSGD


def factor(strategy, n, scale, steps):
    if n >= steps:
        return scale
    if steps <= 1:
        return 1.0
    x = n / steps
    shape = {"linear": x, "power2": x**2, "sqrt": np.sqrt(x)}.get(strategy, 0.0)
    return 1 + (scale - 1) * shape


def reference(mu, scale, strategy, epochs, per_epoch, begin=0, clip=None, norm_scale=1.0):
    def make():
        held, b = 0.0, 0.0

        def step(w, g, t, lr, decay):
            nonlocal held, b
            n = begin * per_epoch + t
            held = held + g
            if n % scale:
                return w
            mean, held = held / scale, 0.0
            f = factor(strategy, n, scale, epochs * per_epoch)
            if strategy == "lars":
                p2, g2 = np.sum(w**2), np.sum((norm_scale * mean) ** 2)
                f = min(max(np.sqrt(p2 / (g2 + decay * p2 + 1e-18)), 0.01), 100.0)
            b = mu * b + lr * f * ((mean if clip is None else np.clip(mean, -clip, clip)) + decay * w)
            return w - b

        return step

    return make


@pytest.mark.parametrize("strategy", ["linear", "power2", "sqrt", "lars", "none"])
@pytest.mark.parametrize("scale", [1, 3])
def test_every_strategy(agree, strategy, scale):
    rule = LBSGD(0.9, scale, strategy, 4, 5)
    agree(rule, reference(0.9, scale, strategy, 4, 5), lr=0.01)


def test_its_other_settings(agree):
    rule = LBSGD(0.0, 3, "linear", 4, 5, begin_epoch=2, clip_inside=0.2)
    agree(rule, reference(0.0, 3, "linear", 4, 5, 2, 0.2))
    agree(LBSGD(0.9, 2, "lars", norm_scale=4.0), reference(0.9, 2, "lars", 5, 32, norm_scale=4.0), lr=0.01)


def test_a_big_batch_is_the_mean_of_its_parts(path):
    parts = [torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0, 6.0)]
    moved = path(LBSGD(batch_scale=3, warmup_epochs=0), torch.zeros(1, dtype=torch.float64), parts, [0.1] * 3, 0.0)
    # by hand: nothing for two steps, then 3 times the rate on the mean of 3
    assert [w.item() for w in moved] == pytest.approx([0.0, 0.0, -0.1 * 3 * 3.0])


def test_half_a_batch_is_refused():
    with pytest.raises(RuleError, match="batch_scale must be an integer >= 1"):
        LBSGD(batch_scale=0)
