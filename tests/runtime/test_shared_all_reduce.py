"""Sums of a few numbers in memory that ranks share; the ranks are threads here."""

import threading
import time

import pytest
import torch

from descend.errors import DataError
from descend.runtime import shared_memory as shared
from descend.runtime.heartbeat import process_identity
from descend.runtime.shared_memory import SharedAllReduce

ENDED = {**process_identity(), "started": "1"}  # an earlier process of this one's number


def ranks_of(count, identities=None):
    memory = [torch.zeros(SharedAllReduce.needed_bytes, dtype=torch.uint8) for _ in range(count)]
    return [SharedAllReduce(memory, rank, identities or [process_identity()] * count) for rank in range(count)]


def together(ranks, act):
    """What `act(sums, rank)` returns or raises in a thread for each rank."""
    found = [None] * len(ranks)

    def work(rank):
        try:
            found[rank] = act(ranks[rank], rank)
        except (RuntimeError, DataError) as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_that_follow_one_another_are_those_of_all_ranks_in_their_order(count):
    """Of other shapes and types each time; a rank that is early overwrites nothing that others still read."""
    draw = torch.Generator().manual_seed(count)
    kinds = (torch.float64, torch.float32, torch.int64)
    given = [[(torch.randn(3, i % 7, generator=draw) * 100).to(kinds[i % 3]) for _ in range(count)] for i in range(200)]

    def act(sums, rank):
        found = []
        for i, some in enumerate(given):
            if (i * 7 + rank) % 23 == 0:
                time.sleep(0.0002)
            own = some[rank].clone()
            sums(own)
            found.append(own)
        return found

    for mine in together(ranks_of(count), act):
        for own, some in zip(mine, given, strict=True):
            total = some[0].clone()
            for more in some[1:]:
                total += more
            assert own.dtype is total.dtype
            assert torch.equal(own, total)


def test_a_rank_that_comes_late_is_waited_for():
    def act(sums, rank):
        time.sleep(0.3 * rank)
        own = torch.tensor([rank + 1.0])
        sums(own)
        return own.item()

    assert together(ranks_of(2), act) == [3.0, 3.0]


@pytest.mark.parametrize("identities", [None, [process_identity(), ENDED]], ids=["has left", "is dead"])
def test_a_rank_that_will_not_come_is_an_error(identities):
    ranks = ranks_of(2, identities)
    if identities is None:
        ranks[1].leave()
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        ranks[0](torch.zeros(1))


def test_a_rank_that_has_left_after_its_part_is_no_error(monkeypatch):
    monkeypatch.setattr(shared, "_CHECK_SECONDS", 0.0)
    ranks = ranks_of(3)

    def act(sums, rank):
        time.sleep(0.1 * rank)
        own = torch.ones(2)
        sums(own)
        sums.leave()
        return own.tolist()

    assert together(ranks, act) == [[3.0, 3.0]] * 3


def test_ranks_that_sum_other_lengths_find_out():
    ranks = ranks_of(2)
    found = together(ranks, lambda sums, rank: sums(torch.zeros(2 + rank)))
    assert ["sums 2 numbers" in str(found[0]), "sums 3 numbers" in str(found[1])] == [True, True]


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_summed_as_torch_does():
    given = [torch.tensor([torch.inf, torch.nan, 3e38]), torch.tensor([-torch.inf, 1.0, 3e38])]

    def act(sums, rank):
        own = given[rank].clone()
        sums(own)
        return own

    for own in together(ranks_of(2), act):
        torch.testing.assert_close(own, given[0] + given[1], equal_nan=True)


def test_what_is_summed_elsewhere():
    sums = ranks_of(2)[0]
    most = shared._ROOM_BYTES // 8
    assert sums.takes(torch.zeros(most, dtype=torch.float64))
    assert not sums.takes(torch.zeros(most + 1, dtype=torch.float64))
    assert not sums.takes(torch.zeros(4, 4).t()[:2])
    assert not sums.takes(torch.zeros(4, dtype=torch.bfloat16))


class Asked:
    """A communicator of two ranks; the other one gives this answer."""

    rank = 0

    def __init__(self, other):
        self.other = other

    def all_gather_object(self, value):
        return [value, [self.other, process_identity()]]


@pytest.mark.parametrize(
    ("awake", "machine", "other", "memory", "found"),
    [
        (True, "x86_64", True, 2, True),
        (False, "x86_64", True, 2, False),
        (True, "aarch64", True, 2, False),
        (True, "x86_64", False, 2, False),
        (True, "x86_64", True, 0, False),
    ],
)
def test_all_ranks_take_part_or_none(awake, machine, other, memory, found, monkeypatch):
    monkeypatch.setattr(shared.platform, "machine", lambda: machine)
    zeros = torch.zeros(SharedAllReduce.needed_bytes, dtype=torch.uint8)
    monkeypatch.setattr(shared, "shared_memory", lambda communicator, size, say: [zeros.clone() for _ in range(memory)])
    assert isinstance(SharedAllReduce.among(Asked(other), awake, pytest.fail), SharedAllReduce) is found
