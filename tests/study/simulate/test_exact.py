"""The recursions against Monte Carlo, against stepping, and against a closed form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.study.simulate import Quadratic, SimulationSettings, first_hit, method, risk_curve, sample

RULES = ["sgd", "heavy_ball", "nesterov", "sgd+average", "heavy_ball+average", "sgd:0.5", "nesterov:0.25"]
SMALL = Quadratic(dimensions=20, bins=0)


@pytest.mark.parametrize("rule", RULES)
def test_expectations_are_those_of_many_samples(rule):
    """3,000 replicas of 20 coordinates; the standard error of the mean risk is estimated from them."""
    rate = 0.3 if "0." in rule else 0.2
    exact = risk_curve(method(rule), 4, [lambda step: rate], problem=SMALL, steps=60, momentum=0.7, averaging=0.9)[:, 0]
    risks = sample(
        rule, 4, [rate] * 3000, steps=60, seeds=range(3000), momenta=0.7, averages=0.9, problem=SMALL, every_steps=10
    )
    for look, step in enumerate(range(0, 61, 10)):
        error = risks[look].std() / math.sqrt(3000)
        assert exact[step] == pytest.approx(risks[look].mean(), abs=4.5 * error), step


def test_a_schedule_is_followed_in_expectation_and_in_samples():
    def schedule(step):
        return 0.3 * (1 - step / 40)

    exact = risk_curve(method("nesterov"), 8, [schedule], problem=SMALL, steps=40, momentum=0.5)[-1, 0]
    risks = sample("nesterov", 8, [schedule] * 4000, steps=40, seeds=range(4000), momenta=0.5, problem=SMALL)[-1]
    assert exact == pytest.approx(risks.mean(), abs=4.5 * risks.std() / math.sqrt(4000))


def test_sgd_has_its_fixed_point():
    """A* = η c / (B h (2 − η h))."""
    rate, size = 0.5, 16
    curve = risk_curve(method("sgd"), size, [lambda step: rate], problem=SMALL, steps=3000)
    h = 1 / np.arange(1, 21)
    assert curve[-1, 0] == pytest.approx(0.5 * (rate * h / (size * (2 - rate * h))).sum(), rel=1e-9)


@settings(max_examples=40)
@given(
    st.sampled_from(RULES),
    st.floats(0.01, 1.2),
    st.floats(0.0, 0.98),
    st.sampled_from([2, 30, 1000, math.inf]),
    st.floats(0.05, 1.5),
)
def test_stretches_find_the_step_that_stepping_finds(rule, rate, beta, size, target):
    chosen = method(rule)
    one = SimulationSettings(np.array([rate]), np.array([beta]), np.array([0.9]))
    curve = risk_curve(chosen, size, [lambda step: rate], problem=SMALL, steps=400, momentum=beta, averaging=0.9)
    hits = np.flatnonzero(curve[:, 0] <= target)
    found = first_hit(chosen, size, one, problem=SMALL, target=target, max_steps=400)[0]
    assert found == (hits[0] if hits.size else math.inf)


def test_a_rate_above_the_limit_never_hits_and_one_below_does():
    for name in ("sgd", "heavy_ball", "nesterov"):
        limit = method(name).stable_below(1.0, 0.6)
        beta = 0.0 if name == "sgd" else 0.6
        limit = limit if beta else method(name).stable_below(1.0, 0.0)
        rates = np.array([1.001, 0.999]) * limit
        both = SimulationSettings(rates, np.full(2, beta), np.zeros(2))
        found = first_hit(
            method(name),
            math.inf,
            both,
            problem=Quadratic(dimensions=1),
            target=1e-6,
            max_steps=10**5,
            all_settings=True,
        )
        assert math.isinf(found[0])
        assert math.isfinite(found[1])


def test_gathered_coordinates_change_steps_by_less_than_a_fifth_of_a_percent():
    one = SimulationSettings(np.array([1.9]), np.zeros(1), np.zeros(1))
    every, gathered = (
        first_hit(method("sgd"), 4096, one, problem=Quadratic(bins=bins), target=0.01, max_steps=10**5)[0]
        for bins in (0, 160)
    )
    assert gathered == pytest.approx(every, rel=0.002)
    assert Quadratic().initial_risk == pytest.approx(4.89, abs=0.005)


def test_a_preconditioner_changes_the_path_and_not_the_risk():
    for power in (0.0, 0.5, 1.0):
        modes = method(f"sgd:{power}").modes(SMALL.modes)
        assert 0.5 * (modes.h * modes.start).sum() == pytest.approx(SMALL.initial_risk)
    curve = risk_curve(method("sgd:1.0"), math.inf, [lambda step: 1.0], problem=SMALL, steps=1)
    assert curve[-1, 0] == pytest.approx(0, abs=1e-12)  # Newton's step on a quadratic


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_a_dip_of_a_risk_that_swings_is_a_hit(momentum):
    """The first step is that of the whole curve, one step at a time, however short the dip is."""
    problem = Quadratic(3, curvature_power=1.0, noise_power=1.0, bins=0)
    draw = np.random.default_rng(0)
    for _ in range(8):
        rate, part = 10 ** draw.uniform(-2, 0.3), 10 ** draw.uniform(-2.5, -0.1)
        rule, batch_size = method(str(draw.choice(["heavy_ball", "nesterov"]))), float(draw.choice([64, math.inf]))
        curve = risk_curve(rule, batch_size, [lambda _, r=rate: r], problem=problem, steps=600, momentum=momentum)
        target = part * problem.initial_risk
        met = np.flatnonzero(curve[:, 0] <= target)
        one = SimulationSettings(*(np.array([x]) for x in (rate, momentum, 0.0)))
        found = first_hit(rule, batch_size, one, problem=problem, target=target, max_steps=600)
        assert found[0] == (met[0] if met.size else math.inf)
