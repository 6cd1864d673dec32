"""The model of steps on many ranks, against sums worked out message by message."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import ConfigurationError
from descend.launch import Network, Profile, forecast, rank_counts
from descend.launch.cost_model import fit_network

PROFILE = Profile(0.001, 1e-4, 4_000_000, 4_000_000, 1, 8_000_000)


def ring(ranks, size, latency, rate):
    """A sum around a ring, one message after the other: every rank sends a piece to the next, twice for each other."""
    clock = [0.0] * ranks
    for _ in range(2 * (ranks - 1)):
        clock = [max(clock[rank], clock[rank - 1]) + latency + size / ranks / rate for rank in range(ranks)]
    return max(clock)


@given(ranks=st.integers(1, 64), size=st.integers(0, 10**9), pieces=st.integers(1, 9))
def test_sums_take_as_long_as_their_messages(ranks, size, pieces):
    network = Network(2e-5, 1e9)
    expected = sum(ring(ranks, size / pieces, 2e-5, 1e9) for _ in range(pieces))
    assert network.sum_seconds(ranks, pieces, size) == pytest.approx(expected)


def test_one_rank_is_what_was_measured():
    one = forecast(PROFILE, Network(1.0, 1.0), 100, 1)
    assert (one.step_seconds, one.waiting, one.efficiency, one.least_batch) == (pytest.approx(0.011), 0.0, 1.0, 1.0)
    assert one.memory_bytes == 16_000_000


def test_half_of_the_work_hides_all_of_the_sums_but_the_last():
    network = Network(0.0, 1e9)  # on two ranks the sums take 4 ms in all
    in_four = replace(PROFILE, messages=4)
    assert forecast(in_four, network, 200, 2).step_seconds == pytest.approx(0.001 + 0.010 + 0.001)  # 5 ms hide them
    assert forecast(in_four, network, 40, 2).step_seconds == pytest.approx(0.001 + 0.002 + 0.004 - 0.001)
    assert forecast(PROFILE, network, 200, 2).step_seconds == pytest.approx(0.001 + 0.010 + 0.004)


@given(
    ranks=st.integers(2, 512),
    each=st.floats(1e-7, 1e-2),
    latency=st.floats(0, 1e-3),
    rate=st.floats(1e7, 1e11),
    pieces=st.integers(1, 20),
)
def test_from_the_least_batch_on_ranks_are_faster_than_one(ranks, each, latency, rate, pieces):
    profile = Profile(0.01, each, 4, 10**7, pieces, 0)
    network = Network(latency, rate)
    least = forecast(profile, network, 1, ranks).least_batch
    more = math.ceil(least * 1.01 / ranks + 1) * ranks  # shares are whole
    assert forecast(profile, network, more, ranks).step_seconds < profile.step_seconds(more) * (1 + 1e-9)
    fewer = math.floor(least * 0.99 / ranks) * ranks
    if fewer:
        assert forecast(profile, network, fewer, ranks).step_seconds > profile.step_seconds(fewer) * (1 - 1e-9)


def test_memory_is_that_of_the_state_shared_out():
    two = forecast(PROFILE, Network(0.0, 1e9), 10, 4)
    assert two.memory_bytes - two.sharded_bytes == 6_000_000


@given(fixed=st.floats(0, 1), each=st.floats(0, 1))
def test_a_line_is_found_again(fixed, each):
    sizes = [8, 16, 32, 64]
    found = fit_network(sizes, [fixed + each * size for size in sizes])
    assert found == (pytest.approx(fixed, abs=1e-9), pytest.approx(each, abs=1e-9))


def test_neither_part_of_a_step_is_negative():
    assert fit_network([1, 2], [2.0, 1.0]) == (1.5, 0.0)
    assert fit_network([1, 2], [1.0, 3.0])[0] == 0.0


@pytest.mark.parametrize(
    ("text", "counts"), [("8", [8]), ("1,2,6", [1, 2, 6]), ("8..64", [8, 16, 32, 64]), ("3..10", [3, 6, 10])]
)
def test_numbers_of_ranks(text, counts):
    assert rank_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "0", "8..4", "1,,2"])
def test_what_is_no_number_of_ranks_is_refused(text):
    with pytest.raises(ConfigurationError, match="--ranks"):
        rank_counts(text)


@pytest.mark.parametrize(
    ("ranks", "messages", "size", "seconds"),
    [
        (1, 3, 1e6, 0.0),
        (2, 1, 1e6, 2 * (1e-3 + 0.5e-3)),  # a ring of two: half of the bytes there and back
        (8, 1, 0, 2 * 3 * 1e-3),  # three levels up and down
        (5, 2, 0, 2 * 3 * 2e-3),
        (4, 1, 1e9, 2 * 3 * (1e-3 + 0.25)),  # many bytes: each link of the ring carries 3/2 of them, of a tree 2
        (1024, 4, 1e6, 2 * (10 * 4e-3 + 1e-3)),
    ],
)
def test_sums_along_trees_where_that_is_sooner(ranks, messages, size, seconds):
    assert Network(1e-3, 1e9, trees=True).sum_seconds(ranks, messages, size) == pytest.approx(seconds)
    ring = Network(1e-3, 1e9).sum_seconds(ranks, messages, size)
    assert ring == pytest.approx(2 * (ranks - 1) * (messages * 1e-3 + size / ranks / 1e9))
