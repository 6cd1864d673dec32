"""Performance profiles against a drawing of them, and the score against its integral."""

import math

import numpy as np
import pytest

from descend.errors import Refused
from descend.study.analysis.profiles import performance_profiles, time_of_searches

TIMES = {
    "a": {"u": 10.0, "v": 30.0, "w": math.inf},
    "b": {"u": 20.0, "v": 15.0, "w": 7.0},
    "c": {"u": 50.0, "v": math.inf, "w": 8.75},
}


def test_ratios_and_scores_worked_out_by_hand():
    found = performance_profiles(TIMES)
    assert found["a"].ratios == {"u": 1.0, "v": 2.0, "w": math.inf}
    assert found["a"].score == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found["b"].score == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert found["c"].score == pytest.approx((0 + 0 + 2.75 / 3) / 3)
    assert [found["a"].fraction(ratio) for ratio in (1.0, 1.99, 2.0, 100.0)] == pytest.approx(
        [1 / 3, 1 / 3, 2 / 3, 2 / 3]
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_score_is_the_area_under_the_profile(seed):
    draw = np.random.default_rng(seed)
    times = {arm: {f"{w}": float(draw.lognormal()) for w in range(7)} for arm in "abcd"}
    for arm, profile in performance_profiles(times, limit=3.0).items():
        grid = np.linspace(1, 3, 200_001)
        ratios = np.array([times[arm][w] / min(own[w] for own in times.values()) for w in times[arm]])
        area = np.trapezoid((ratios[:, None] <= grid).mean(0), grid) / 2
        assert profile.score == pytest.approx(area, abs=1e-4)


def test_a_target_that_no_arm_met_counts_for_no_arm():
    found = performance_profiles({"a": {"u": math.inf, "v": 1.0}, "b": {"u": math.inf, "v": 1.0}})
    assert (found["a"].score, found["b"].score) == (0.5, 0.5)


def test_one_number_of_several_searches():
    assert time_of_searches([[1.0, 2.0, 9.0], [5.0, math.inf, math.inf], [4.0, 4.0, 4.0]]) == 4.0


def test_what_is_refused():
    with pytest.raises(Refused) as refused:
        performance_profiles({"a": {"u": 0.0}, "b": {"v": math.nan}}, limit=1.0)
    assert len(refused.value.problems) == 5
