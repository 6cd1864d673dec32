"""Whom a rank holds responsible for its waiting; the ranks are objects of one process and leave words in one store."""

import os
from types import SimpleNamespace

import pytest
from torch import distributed

from descend.runtime import Communicator
from descend.runtime import watchdog as vigil
from descend.runtime.communicator import RankStatus
from descend.runtime.watchdog import Watchdog

TIMEOUT = 1.0
WORKER = 10  # beyond those that follow rank 0


class Clock:
    """Time that passes when the test says so, however busy the host is."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(vigil, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def ranks(clock):
    store = distributed.HashStore()
    some = [Watchdog(store, Communicator(rank, 12, status=RankStatus()), TIMEOUT) for rank in range(12)]
    some[0]._process.status.served = range(1, 12)
    return some


def blamed(clock, ranks, seconds):
    """Whom rank 0 suspects after a time in which all others have given signs of life."""
    until, number = clock.now + seconds, 0
    while clock.now < until:
        number += 1
        for rank in ranks[1:]:
            rank._beat(number)
        if cause := ranks[0]._suspect():
            return cause
        clock.now += 0.02
    return None


def test_a_server_that_never_waits_finds_the_worker_that_makes_no_step(clock, ranks):
    for rank in ranks[1:]:
        rank._process.doing.waiting = None if rank is ranks[WORKER] else "weights of the parameter server"
    cause = blamed(clock, ranks, 2 * TIMEOUT)
    assert cause["rank"] == WORKER
    assert cause["why"] == "rank 10 hangs: it has made no step for 0.8 seconds"


def test_workers_that_wait_or_make_steps_are_let_be(clock, ranks):
    for rank in ranks[1:WORKER]:
        rank._process.doing.waiting = "weights of the parameter server"
    for step in range(8):
        for rank in ranks[WORKER:]:
            rank._process.doing.steps = step
        assert blamed(clock, ranks, TIMEOUT / 4) is None


def test_ranks_whose_launcher_has_gone_find_out(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    rank = Watchdog(distributed.HashStore(), Communicator(0, 2, status=RankStatus()), TIMEOUT)
    assert rank._left_alone() is None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert "was killed or has crashed" in rank._left_alone()["why"]
