import numpy as np
import pytest
from scipy import stats

from descend.data.counter_rng import GOLDEN, Draws, key_of, mix


def test_mix_is_splitmix64():
    """The first outputs of Vigna's splitmix64.c with seed 1234567, as published in the tests of several libraries."""
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert mix(states).tolist() == expected


def test_a_row_depends_on_its_sample_alone():
    key = key_of("test", 1)
    together = Draws(key, np.array([3, 5, 9])).uniform(4)
    alone = Draws(key, np.array([5])).uniform(4)
    np.testing.assert_array_equal(together[1:2], alone)


def test_draws_follow_each_other_whatever_the_calls():
    key, samples = key_of("test", 1), np.arange(5)
    at_once, in_parts = Draws(key, samples), Draws(key, samples)
    np.testing.assert_array_equal(at_once.uniform(5), np.hstack([in_parts.uniform(2), in_parts.uniform(3)]))


def test_distributions():
    samples = np.arange(20_000)
    assert stats.kstest(Draws(key_of("u"), samples).uniform(3).ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(Draws(key_of("n"), samples).normal(3).ravel(), "norm").pvalue > 1e-3
    counts = np.bincount(Draws(key_of("i"), samples).integers(7), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("other", [("test", 1, 2), ("tests", 1), ("test", 2)])
def test_another_purpose_is_another_key(other):
    assert key_of("test", 1) != key_of(*other)
