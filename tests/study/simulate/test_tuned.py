"""Tuned steps against the published table of the model, and what tuning must not do."""

import math

import numpy as np
import pytest

from descend.errors import ConfigurationError
from descend.optim.schedules import Polynomial
from descend.study.simulate import MOMENTUM_RATES, RATES, Quadratic, steps_to_target, tuned

SIZES = [64, 256, 1024, 4096, 16384, 65536, 262144, 4194304]
# Steps to risk 0.01, tuned on grids of rates, momenta and averaging factors.
TABLE = {
    "sgd": [98659, 25757, 10440, 8856, 7960, 6955, 6770, 6716],
    "sgd:0.25": [37270, 9384, 2518, 1049, 889, 756, 734, 727],
    "sgd:0.5": [21755, 5471, 1394, 355, 120, 105, 103, 102],
    "sgd+average": [25357, 8582, 7224, 6868, 6761, 6731, 6724, 6716],
    "heavy_ball": [94646, 23963, 5923, 1345, 378, 212, 181, 176],
    "heavy_ball:0.5": [21727, 5451, 1379, 317, 77, 29, 27, 25],
}


@pytest.mark.parametrize("rule", TABLE)
def test_the_table_to_half_a_percent(rule):
    """Or to one step, where that is more; every other batch size, of which each is that of three rules."""
    start = [*TABLE].index(rule) % 2
    for size, steps in zip(SIZES[start::2], TABLE[rule][start::2], strict=True):
        assert steps_to_target(rule, size) == pytest.approx(steps, rel=0.005, abs=1), size


@pytest.mark.parametrize("place", [1, 5, *(pytest.param(i, marks=pytest.mark.slow) for i in (0, 2, 3, 4, 6, 7))])
def test_finer_grids_need_at_most_what_the_table_says(place):
    size, steps = SIZES[place], TABLE["heavy_ball:0.5"][place]
    assert steps_to_target("heavy_ball:0.5", size, refine=True) <= 1.005 * steps, size


def test_the_published_edge_is_reported():
    """The table's momentum row lies on the upper end of its rates from 65,536 on."""
    assert tuned("heavy_ball", 262144).on_edge == ("rate",)
    assert tuned("sgd", 256).on_edge == ()


@pytest.mark.slow
def test_finer_grids_find_fewer_steps_and_a_setting_that_has_them():
    coarse, fine = (tuned("nesterov", 4096, refine=refine) for refine in (False, True))
    assert fine.steps < coarse.steps
    again = steps_to_target("nesterov", 4096, rates=[fine.rate], momenta=[fine.momentum])
    assert again == fine.steps


def test_momentum_averaging_and_preconditioning_do_what_zhang_et_al_say():
    sgd, momentum, averaged, preconditioned = (
        [steps_to_target(rule, size) for size in (64, 65536)]
        for rule in ("sgd", "heavy_ball", "sgd+average", "sgd:0.5")
    )
    assert momentum[0] > 0.9 * sgd[0]
    assert momentum[1] < 0.05 * sgd[1]
    assert averaged[0] < 0.3 * sgd[0]
    assert averaged[1] > 0.9 * sgd[1]
    assert preconditioned[0] < 0.3 * sgd[0]


def test_a_decaying_rate_beats_a_constant_one_where_noise_matters():
    constant = steps_to_target("sgd", 64, problem=Quadratic(dimensions=100), target=0.02)
    decayed = steps_to_target(
        "sgd",
        64,
        problem=Quadratic(dimensions=100),
        target=0.02,
        schedule=lambda peak, steps: Polynomial(peak, steps),
        rates=np.geomspace(0.02, 1.9, 12),
    )
    assert decayed < 0.8 * constant


def test_a_target_below_the_noise_is_never_met():
    assert steps_to_target("sgd", 1, rates=[1.0]) == math.inf
    assert steps_to_target("sgd", 64, rates=[0.2], max_steps=1000) == math.inf


def test_impossible_settings_are_refused_together():
    with pytest.raises(ConfigurationError) as wrong:
        steps_to_target("heavy_ball", 0, momenta=[1.0], rates=[])
    assert len(wrong.value.problems) == 3
    with pytest.raises(ConfigurationError, match="list of numbers"):
        steps_to_target("sgd", 64, rates=["fast"])
    with pytest.raises(ConfigurationError, match="batch_size must be > 0, got '64'"):
        steps_to_target("sgd", "64")


def test_settings_that_a_rule_has_not_are_refused():
    with pytest.raises(ConfigurationError) as wrong:
        steps_to_target("sgd:0.5", 64, momenta=[0.0, 0.9], averages=[0.9])
    assert list(wrong.value.problems) == [
        "momenta are [0.0, 0.9] and the rule sgd:0.5 has none: leave them out, or take heavy_ball or nesterov",
        "averages are [0.9] and the rule sgd:0.5 has none: leave them out, or take sgd+average:0.5",
    ]
    with pytest.raises(ConfigurationError, match="momenta"):
        steps_to_target("sgd", 64, momenta=[0.9], schedule=lambda peak, steps: Polynomial(peak, steps))
    assert steps_to_target("sgd", 64, rates=[0.02], momenta=[0.0]) == steps_to_target("sgd", 64, rates=[0.02])


def test_grids_are_sorted_and_distinct():
    for grid in (RATES, MOMENTUM_RATES):
        assert sorted(set(grid), reverse=True) == list(grid)
