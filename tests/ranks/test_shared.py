"""Gradients that are summed in memory which all ranks see: the same as on one rank, and gloo where there is none."""

import platform

import pytest
from ranks.cases import CASES
from ranks.start import begin, end, start
from ranks.test_exactness import alone, compare
from system_needs import needs_linux

from descend.launch import cores
from descend.runtime.shared_memory import ORDERED

pytestmark = needs_linux


def shared(ranks, folder, way, *names):
    ended = start(ranks, "shared.py", folder, way, *names)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    seen = [rank.left.pop("seen") for rank in ended]
    compare([rank.left for rank in ended], names, alone)
    awake = way == "shared" and ranks <= cores() and platform.machine() in ORDERED
    assert [bool(counts.get("small sums")) for counts in seen] == [awake] * ranks
    return ended, seen


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(("ranks", "every"), [(2, 2), (3, 1)])
def test_any_number_of_ranks_gives_what_one_gives(ranks, every, tmp_path):
    """With and without a processor for each, on most machines; with one every second case."""
    _, seen = shared(ranks, tmp_path, "shared", *list(CASES)[::every])
    assert all(counts["add_up"] for counts in seen)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "words"), [("refused", 1), ("apart", 0)])
def test_gradients_go_over_the_network_where_the_ranks_share_no_memory(way, words, tmp_path):
    """The first rank prints one line per run about it where shared memory was available."""
    ended, seen = shared(2, tmp_path, way, "partial batch")
    assert [counts.get("add_up", 0) for counts in seen] == [0, 0]
    assert [(rank.out + rank.err).count("there is none") for rank in ended] == [words, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code", "why"), [("killed", -9, ""), ("stopped", -9, ""), ("fails", 1, "in a sum")])
def test_a_rank_that_ends_or_hangs_within_a_sum_ends_all(way, code, why, tmp_path):
    processes = begin(2, "shared.py", tmp_path, way, "partial batch", DESCEND_TIMEOUT_SECONDS="4")
    found = end(processes, tmp_path)
    assert [rank.code for rank in found] == [6, code]
    last = found[0].err.strip().splitlines()[-1]
    assert "rank 1" in last
    assert why in last
