"""Sampled runs: each trial by a loop of its own, whatever runs beside it. The expectations are in test_exact.py."""

import numpy as np
import pytest

from descend.study.simulate import Quadratic, sample

PROBLEM = Quadratic(3, bins=0)


def by_hand(rule, rate, seed, steps, momentum=0.9, average=0.99, batch_size=4):
    """One trial as a loop, with the draws of its seed in their order."""
    draw = np.random.default_rng(seed)
    h = 1 / np.arange(1, 4)
    theta = draw.normal(size=3)
    moving, mean = np.zeros(3), theta.copy()
    risks = [0.5 * (h * theta**2).sum()]
    noise = draw.normal(size=(steps, 3))  # drawn ahead in one call, for up to 64 steps
    for step in range(steps):
        g = h * theta + np.sqrt(h / batch_size) * noise[step]
        moving = momentum * moving + g
        direction = {"sgd": g, "heavy_ball": moving, "nesterov": momentum * moving + g}[rule.partition("+")[0]]
        theta = theta - rate * direction
        mean = average * mean + (1 - average) * theta
        risks.append(0.5 * (h * (mean if "average" in rule else theta) ** 2).sum())
    return risks


@pytest.mark.parametrize("rule", ["sgd", "heavy_ball", "nesterov", "sgd+average"])
def test_a_trial_is_its_own_loop(rule):
    found = sample(rule, 4, [0.1, 0.3], steps=20, seeds=[5, 6], problem=PROBLEM)
    assert found.shape == (21, 2)
    for place, (rate, seed) in enumerate([(0.1, 5), (0.3, 6)]):
        np.testing.assert_allclose(found[:, place], by_hand(rule, rate, seed, 20), rtol=1e-10)


def test_looks_are_taken_at_equal_distances():
    whole = sample("sgd", 4, [0.1], steps=20, seeds=[0], problem=PROBLEM)
    assert (sample("sgd", 4, [0.1], steps=20, seeds=[0], problem=PROBLEM, every_steps=5) == whole[::5]).all()


def test_a_schedule_is_called_with_the_step():
    steps = []
    sample("sgd", 4, [lambda step: steps.append(step) or 0.1], steps=3, seeds=[0], problem=PROBLEM)
    assert steps == [0, 1, 2]


def test_what_overflows_is_infinite():
    found = sample("sgd", 4, [1e200, 0.1], steps=5, seeds=[0, 0], problem=PROBLEM)
    assert np.isinf(found[-1, 0])
    assert np.isfinite(found[:, 1]).all()
