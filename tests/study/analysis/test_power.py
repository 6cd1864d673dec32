"""Sample sizes against the table of the reference and against simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from descend.errors import ConfigurationError
from descend.study.analysis import detectable_difference, seeds_needed


@pytest.mark.parametrize(("part", "means", "medians"), [(1, 16, 25), (0.5, 63, 99), (0.25, 252, 395)])
def test_seeds_for_a_difference_of_so_many_sd(part, means, medians):
    assert seeds_needed(part * 0.7, 0.7) == means
    assert seeds_needed(part * 0.7, 0.7, of_medians=True) == medians


def test_detectable_is_the_inverse():
    found = detectable_difference(0.2, 20)
    assert seeds_needed(found * 1.0001, 0.2) == 20
    assert seeds_needed(found * 0.97, 0.2) > 20


def test_the_power_is_what_it_says():
    difference = detectable_difference(1.0, 63)
    draw = np.random.default_rng(0)
    a, b = draw.normal(difference, 1, (2000, 63)), draw.normal(0, 1, (2000, 63))
    found = scipy.stats.ttest_ind(a, b, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    "call", [lambda: seeds_needed(0, 1), lambda: seeds_needed(1e-200, 1), lambda: detectable_difference(math.nan, 5)]
)
def test_impossible_questions_are_refused(call):
    with pytest.raises(ConfigurationError):
        call()
