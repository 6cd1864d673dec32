"""Schedule-free SGD and AdamW against the paper's three sequences, kept apart."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import ScheduleFreeAdamW, ScheduleFreeSGD


def reference(beta, r, power, b2=None, eps=0.0):
    def make():
        x = z = None
        v = total = top = 0.0

        def step(y, g, t, lr, decay):
            nonlocal x, z, v, total, top
            x = y if x is None else x
            z = y if z is None else z
            if b2 is not None:
                v = b2 * v + (1 - b2) * g**2
                g = g / (np.sqrt(v / (1 - b2**t)) + eps) + decay * y
            z = z - lr * g
            top = max(top, lr)
            weight = t**r * top**power
            total += weight
            x = x + weight / total * (z - x)
            step.average = x
            return (1 - beta) * z + beta * x

        return step

    return make


@pytest.mark.parametrize("r", [0.0, 1.0])
def test_sgd(agree, r):
    agree(ScheduleFreeSGD(0.9, r, 2.0), reference(0.9, r, 2.0))


def test_adamw(agree):
    agree(ScheduleFreeAdamW(0.9, 0.98, 1e-3), reference(0.9, 0.0, 2.0, 0.98, 1e-3))


def test_the_average_is_had_from_what_is_stored():
    rule, random = ScheduleFreeSGD(0.8), np.random.default_rng(0)
    step = reference(0.8, 0.0, 2.0)()
    p = torch.tensor(random.normal(size=5))
    s, w = rule.init(p), p.numpy()
    for t in range(1, 20):
        g = random.normal(size=5)
        number = torch.tensor(float(t), dtype=torch.float64)
        p, s = rule.update(torch.tensor(g), p, s, number, torch.tensor(0.1, dtype=torch.float64))
        w = step(w, g, t, 0.1, 0.0)
        np.testing.assert_allclose(rule.averaged(p, s).numpy(), step.average, rtol=1e-10, atol=1e-12)


def test_with_a_constant_rate_the_average_is_the_mean_of_z(path):
    rule, grads = ScheduleFreeSGD(0.9), [torch.tensor([1.0], dtype=torch.float64)] * 4
    p = torch.zeros(1, dtype=torch.float64)
    s = rule.init(p)
    for t, g in enumerate(grads, 1):
        number = torch.tensor(float(t), dtype=torch.float64)
        p, s = rule.update(g, p, s, number, torch.tensor(0.1, dtype=torch.float64))
    # z is -0.1, -0.2, -0.3, -0.4
    assert rule.averaged(p, s).item() == pytest.approx(-0.25)


def test_beta_must_leave_the_average_reachable():
    with pytest.raises(RuleError, match="beta must be above 0"):
        ScheduleFreeSGD(beta=0.0)
