"""Points of a search are a function of (seed, search, index)."""

import numpy as np
import pytest
import scipy.stats.qmc

from descend.study.design import linear, log, points, seed_of

SPACE = {"lr": log(1e-3, 1), "beta": linear(0, 1)}


def draw(space=SPACE, count=8, seed=1, search=0, sampler="sobol"):
    return points(space, count, seed=seed, search=search, sampler=sampler)


@pytest.mark.parametrize("sampler", ["sobol", "random"])
def test_extending_a_search_keeps_its_points(sampler):
    assert draw(count=40, sampler=sampler)[:20] == draw(count=20, sampler=sampler)


def test_other_searches_and_seeds_have_other_points():
    assert draw() == draw()
    assert draw() != draw(search=1)
    assert draw() != draw(seed=2)


@pytest.mark.parametrize("sampler", ["sobol", "random"])
def test_arms_that_search_over_the_same_names_share_coordinates(sampler):
    other = draw({"beta": linear(0, 2), "lr": log(1e-2, 10)}, sampler=sampler)
    for ours, theirs in zip(draw(sampler=sampler), other, strict=True):
        assert theirs["beta"] == pytest.approx(2 * ours["beta"])
        assert theirs["lr"] == pytest.approx(10 * ours["lr"])


def test_sobol_points_are_spread_more_evenly_than_random_ones():
    def discrepancy(sampler):
        cells = [[np.log10(p["lr"]) / 3 + 1, p["beta"]] for p in draw(count=16, sampler=sampler)]
        return scipy.stats.qmc.discrepancy(cells)

    assert discrepancy("sobol") < 0.3 * discrepancy("random")


def test_an_arm_without_a_space_repeats():
    assert draw({}, 3) == [{}, {}, {}]


def test_seeds_are_whole_and_far_apart():
    seeds = {seed_of(1, "confirmation", search, number) for search in range(20) for number in range(50)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
