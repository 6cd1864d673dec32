""""""

import hashlib
import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from descend.data import order, orders
from descend.data.order import GOLDEN, Draws, key_of, mix


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


AROUND_POWERS = [2**k + d for k in range(1, 15) for d in (-1, 0, 1)]


def whole(n: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return order(seed, epoch, np.arange(n), n)


@pytest.mark.parametrize("n", sorted({1, 2, 3, 5, 6, 7, *AROUND_POWERS, 10**6}))
def test_every_sample_once(n):
    np.testing.assert_array_equal(np.sort(whole(n, seed=n)), np.arange(n))


@given(n=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_sample_once_for_any_key(n, seed, epoch):
    np.testing.assert_array_equal(np.sort(whole(n, seed, epoch)), np.arange(n))


@given(n=st.integers(1, 10**15), data=st.data())
def test_a_position_does_not_depend_on_its_company(n, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = order(1, 2, positions, n)
    assert ((together >= 0) & (together < n)).all()
    alone = [order(1, 2, positions[i : i + 1], n)[0] for i in range(len(positions))]
    assert together.tolist() == alone


def test_no_positions():
    assert order(0, 0, np.zeros(0, dtype=np.int64), 10).shape == (0,)


def test_without_shuffle_positions_are_samples():
    np.testing.assert_array_equal(order(3, 5, np.arange(4, 9), 100, shuffle=False), np.arange(4, 9))


def feistel_in_plain_integers(x: int, n: int, key: int) -> int:
    """The network of the module's docstring, one element at a time, in Python's unbounded integers."""
    a = math.ceil(math.sqrt(n))
    b = math.ceil(n / a)
    keys = [splitmix(key + i * 0x9E3779B97F4A7C15) for i in range(1, 13)]
    while True:
        left, right = divmod(x, b)
        for k, k_next in zip(keys[::2], keys[1::2], strict=True):
            left = (left + splitmix(right ^ k) // 2) % a
            right = (right + splitmix(left ^ k_next) // 2) % b
        x = left * b + right
        if x < n:
            return x


def splitmix(x: int) -> int:
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_it_is_the_network_of_the_docstring(n):
    key = int.from_bytes(hashlib.blake2b(b"order:7:3", digest_size=8).digest(), "little")
    assert whole(n, seed=7, epoch=3).tolist() == [feistel_in_plain_integers(x, n, key) for x in range(n)]


def test_order_stays_what_it_was():
    """A run that continues on another machine or with a later version needs the order that it began with."""
    assert whole(10, seed=7, epoch=3).tolist() == [3, 8, 5, 9, 1, 4, 2, 7, 0, 6]


@pytest.mark.parametrize(("n", "seeds"), [(2, 2000), (3, 3000), pytest.param(4, 12_000, marks=pytest.mark.slow)])
def test_all_permutations_of_a_few_samples_are_as_likely(n, seeds):
    counts = Counter(tuple(whole(n, seed).tolist()) for seed in range(seeds))
    observed = [counts[permutation] for permutation in itertools.permutations(range(n))]
    assert stats.chisquare(observed).pvalue > 1e-3


@pytest.mark.parametrize("n", [5, 10, pytest.param(37, marks=pytest.mark.slow)])
def test_each_position_gets_each_sample_as_often(n):
    seeds = 200 * n
    orders = np.stack([whole(n, seed) for seed in range(seeds)])
    pvalues = [stats.chisquare(np.bincount(orders[:, p], minlength=n)).pvalue for p in range(n)]
    assert min(pvalues) > 1e-3 / n


@pytest.mark.parametrize("n", [1000, 1024, 60_000])
def test_neighbours_do_not_stay_neighbours(n):
    """The difference of two neighbours is that of two random samples: all n − 1 are as likely."""
    steps = np.diff(whole(n, seed=1)) % n
    bins = np.bincount(steps * 20 // n, minlength=20)
    assert stats.chisquare(bins).pvalue > 1e-3
    # The number of ±1 steps is Poisson with mean 2.
    assert np.isin(steps, (1, n - 1)).sum() < 12


@pytest.mark.parametrize("n", [1000, 4096, 60_000])
@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 1}, {"seed": -1}])
def test_another_epoch_or_seed_is_unrelated(n, other):
    a, b = whole(n), whole(n, **other)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(n)
    assert (a == b).sum() < 10  # fixed points are Poisson with mean 1
    table = np.histogram2d(a, b, bins=8, range=[[0, n], [0, n]])[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_an_epoch_mixes_all_of_the_data_set():
    """Any stretch of the order is a fair sample of the whole, so a sorted file does no harm."""
    n = 50_000
    for stretch in np.split(whole(n, seed=5), 10):
        assert stats.kstest(stretch / n, "uniform").pvalue > 1e-4


def test_the_end_of_a_long_epoch_costs_as_little_as_its_beginning():
    n, batch = 10_000_000, np.arange(256)
    order(0, 0, batch, n)
    tracemalloc.start()
    order(0, 0, batch + 9_900_000, n)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000  # an array of all positions has 80 MB


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30, 1201, 20_000])
def test_orders_of_several_runs_are_those_of_each(n):
    for seeds in ([5], [3, 99, 2**40, 7, 1]):
        several = orders(seeds, 4, n)
        assert several.shape == (len(seeds), n)
        for row, seed in zip(several, seeds, strict=True):
            assert (row == order(seed, 4, np.arange(n), n)).all()
