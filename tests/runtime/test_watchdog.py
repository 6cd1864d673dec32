"""Which rank the watchdog finds hung or crashed; the ranks are objects of one process with one store."""

import os
from types import SimpleNamespace

import pytest
from torch import distributed

from descend.runtime import Communicator, heartbeat, watchdog
from descend.runtime.communicator import RankStatus
from descend.runtime.watchdog import Watchdog

TIMEOUT = 1.0
WORKER = 10  # not among the successors of rank 0 that every rank monitors


class Clock:
    """Time that passes when the test says so, however busy the host is."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def ranks(clock):
    store = distributed.HashStore()
    some = [Watchdog(store, Communicator(rank, 12, status=RankStatus()), TIMEOUT) for rank in range(12)]
    some[0]._communicator.status.served = range(1, 12)
    return some


def hung_rank(clock, ranks, seconds):
    """The rank that rank 0 finds hung within a time in which all others send heartbeats."""
    until, number = clock.now + seconds, 0
    while clock.now < until:
        number += 1
        for rank in ranks[1:]:
            rank._heartbeats.send(number)
        if cause := ranks[0]._ranks.find_hung_rank():
            return cause
        clock.now += 0.02
    return None


def test_a_server_that_never_waits_finds_the_worker_that_makes_no_step(clock, ranks):
    for rank in ranks[1:]:
        rank._communicator.status.waiting = None if rank is ranks[WORKER] else "weights of the parameter server"
    cause = hung_rank(clock, ranks, 2 * TIMEOUT)
    assert cause["rank"] == WORKER
    assert cause["why"] == "rank 10 hangs: it has made no step for 0.8 seconds"


def test_workers_that_wait_or_make_steps_are_let_be(clock, ranks):
    for rank in ranks[1:WORKER]:
        rank._communicator.status.waiting = "weights of the parameter server"
    for step in range(8):
        for rank in ranks[WORKER:]:
            rank._communicator.status.steps = step
        assert hung_rank(clock, ranks, TIMEOUT / 4) is None


def test_ranks_whose_launcher_has_gone_find_out(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    rank = Watchdog(distributed.HashStore(), Communicator(0, 2, status=RankStatus()), TIMEOUT)
    assert rank._launcher_failure() is None
    other = os.getppid() + 1
    monkeypatch.setattr(os, "getppid", lambda: other)
    assert "was killed or has crashed" in rank._launcher_failure()["why"]


def test_a_rank_without_a_heartbeat_is_reported(clock, ranks):
    ranks[0]._communicator.status.served = ()
    assert hung_rank(clock, ranks, TIMEOUT / 2) is None
    silent = ranks.pop(3)
    cause = hung_rank(clock, ranks, 2 * TIMEOUT)
    assert cause["why"].startswith(f"rank {silent._communicator.rank} has sent no heartbeat for 0.8")
    assert cause["hangs"]


@pytest.mark.parametrize("is_served", [True, False])
def test_a_rank_suspended_after_its_last_step_is_said_to_send_no_heartbeat(is_served, clock, ranks):
    """It made its last step a while before its last heartbeat, so that the time for steps runs out first."""
    status = ranks[0]._communicator.status
    status.served = (5,) if is_served else ()
    for rank in ranks:
        rank._communicator.status.waits = 1 if rank is ranks[5] else 2
        rank._communicator.status.waiting = None if rank is ranks[5] or is_served else "an all-reduce"
        rank._communicator.status.since = clock.now
    assert hung_rank(clock, ranks, TIMEOUT / 4) is None
    suspended = ranks.pop(5)
    cause = hung_rank(clock, ranks, 2 * TIMEOUT)
    assert cause["rank"] == suspended._communicator.rank
    assert "has sent no heartbeat for 0.5" in cause["why"]
    assert clock.now < TIMEOUT


def test_the_rank_that_has_entered_fewer_collectives_holds_the_others_up(clock, ranks):
    """Rank 0 waits in its second all-reduce; of the others only rank 5 has entered no second one."""
    for rank in ranks:
        rank._communicator.status.served = ()
        rank._communicator.status.waits = 1 if rank is ranks[5] else 2
        rank._communicator.status.waiting = None if rank is ranks[5] else "an all-reduce"
        rank._communicator.status.since = clock.now
    cause = hung_rank(clock, ranks, 2 * TIMEOUT)
    assert cause["rank"] == 5
    assert "waited 0.8 seconds for it, at an all-reduce" in cause["why"]


def test_a_rank_that_writes_a_checkpoint_is_waited_for(clock, ranks):
    for rank in ranks:
        rank._communicator.status.served = ()
        rank._communicator.status.waits = 1 if rank is ranks[5] else 2
        rank._communicator.status.waiting = None if rank is ranks[5] else "an all-reduce"
    ranks[5]._communicator.status.is_busy = True
    assert hung_rank(clock, ranks, 3 * TIMEOUT) is None


def test_a_rank_that_hangs_within_a_save_is_found(clock, ranks, monkeypatch):
    done = iter(range(10**6))
    monkeypatch.setattr(heartbeat, "work_done", lambda: str(min(next(done), 40)))  # at each heartbeat, and then no more
    for rank in ranks:
        rank._communicator.status.served = ()
        rank._communicator.status.waits = 2
        rank._communicator.status.waiting = None if rank is ranks[5] else "a value of rank 0"
    ranks[5]._communicator.status.is_busy = True
    assert hung_rank(clock, ranks, 8 * TIMEOUT) is None
    cause = hung_rank(clock, ranks, 8 * TIMEOUT)
    assert cause is not None
    assert cause["rank"] == 5
    assert "rank 5 hangs: it works for all ranks" in cause["why"]
    assert "the others wait at a value of rank 0" in cause["why"]


def test_the_first_cause_counts_on_all_ranks(ranks):
    first = ranks[2]._heartbeats.record_cause("rank 2 failed: a", 2)
    assert ranks[4]._heartbeats.record_cause("rank 4 failed: b", 4) == first
    assert ranks[7]._heartbeats.first_cause() == first
