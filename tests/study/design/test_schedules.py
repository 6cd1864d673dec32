"""Schedules by name against hand-written rates."""

import math

import pytest

from descend.errors import ConfigurationError
from descend.optim.schedules import lint
from descend.study.design.arm import Arm, arm
from descend.study.design.schedules import SCHEDULES, make_schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_peak_is_met_and_no_first_step_is_lost(name):
    schedule = make_schedule(name, {}, peak=0.5, steps=400)
    rates = [schedule(step) for step in range(400)]
    assert rates[0] > 0
    if name == "bert":  # its rate has fallen already where the warm-up would reach the peak
        assert max(rates) == pytest.approx(0.5 * 39 / 40)
    else:
        assert max(rates) == pytest.approx(0.5)
        assert lint(schedule, 400) == []


def test_the_papers_polynomial():
    schedule = make_schedule(
        "polynomial", {"warmup_fraction": 0.25, "warmup_power": 2.0, "final_fraction": 0.01}, peak=8.0, steps=100
    )
    assert schedule(9) == pytest.approx(8.0 * (10 / 25) ** 2)
    assert schedule(59) == pytest.approx(0.08 + 7.92 * (40 / 75) ** 2)
    assert schedule(99) == pytest.approx(0.08)


def test_cosine():
    schedule = make_schedule("cosine", {"warmup_fraction": 0.1}, peak=1.0, steps=100)
    assert schedule(4) == pytest.approx(0.5)
    assert schedule(54) == pytest.approx((1 + math.cos(math.pi * 45 / 90)) / 2)


def test_mistakes():
    with pytest.raises(ConfigurationError, match="did you mean 'cosine'"):
        make_schedule("cosin", {}, 1.0, 10)
    with pytest.raises(ConfigurationError, match="did you mean 'warmup_fraction'"):
        make_schedule("cosine", {"warmup_fractin": 0.1}, 1.0, 10)
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        make_schedule("cosine", {"warmup_fraction": 2}, 1.0, 10)


def test_an_arm_takes_a_schedule_as_a_table():
    table = {"kind": "trapezoid", "warmup_fraction": 0.2}
    assert Arm("SGD", schedule=table) == Arm("SGD", fixed={"schedule.warmup_fraction": 0.2}, schedule="trapezoid")
    assert arm({"optimizer": "SGD", "schedule": table}) == Arm("SGD", schedule=table)
