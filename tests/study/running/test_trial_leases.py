"""Leases of trials: one holder at a time, void without a heartbeat."""

import os
import time

from descend.study.running import trial_leases
from descend.study.running.trial_leases import TrialLeases


def test_one_process_holds_a_lease_until_it_is_released(tmp_path):
    one, other = TrialLeases(tmp_path), TrialLeases(tmp_path)
    assert one.take("a")
    assert not other.take("a")
    assert other.take("b")
    other.release("a")  # which it does not hold
    assert not other.take("a")
    one.release("a")
    assert other.take("a")
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_without_a_heartbeat_is_void(tmp_path):
    dead, living = TrialLeases(tmp_path), TrialLeases(tmp_path)
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    for age, taken in ((trial_leases.LEASE_SECONDS - 5, False), (trial_leases.LEASE_SECONDS + 5, True)):
        old = time.time() - age
        os.utime(lease, (old, old))
        assert living.take("a") == taken
    dead.renew()  # what was lost stays lost
    assert not dead.take("a")


def test_heartbeats_keep_a_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_leases, "_HEARTBEAT_SECONDS", 0.01)
    leases = TrialLeases(tmp_path)
    leases.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    leases.start_heartbeats()
    deadline = time.monotonic() + 10
    while lease.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.time() - lease.stat().st_mtime < 60
    leases.close()
    assert list(tmp_path.iterdir()) == []


def test_who_comes_late_to_a_void_lease_gives_back_the_new_one(tmp_path, monkeypatch):
    """Both saw the old lease; the first has taken it over before the second renames what is there."""
    dead, first, second = (TrialLeases(tmp_path) for _ in range(3))
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    void = second._is_void

    def seen_before_the_first_came(lock):
        was_void = void(lock)
        if lock.path == lease:
            monkeypatch.setattr(second, "_is_void", void)
            assert first.take("a")
        return was_void

    monkeypatch.setattr(second, "_is_void", seen_before_the_first_came)
    assert not second.take("a")
    assert list(tmp_path.iterdir()) == [lease]
    assert not TrialLeases(tmp_path).take("a")


def test_the_heartbeat_is_several_times_as_fast_as_a_lease_is_void():
    assert trial_leases.LEASE_SECONDS == 60.0
    assert trial_leases._HEARTBEAT_SECONDS == 10.0


def test_a_lease_that_was_lost_is_not_held_any_more(tmp_path):
    """Otherwise this process would release the lease of the one that has it now."""
    dead, living = TrialLeases(tmp_path), TrialLeases(tmp_path)
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    assert living.take("a")
    dead.renew()
    assert dead._held == {}
    dead.close()
    assert list(tmp_path.iterdir()) != []
    living.close()
    assert living._held == {}


def test_heartbeats_begin_again_after_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_leases, "_HEARTBEAT_SECONDS", 0.01)
    leases = TrialLeases(tmp_path)
    for _ in range(2):
        leases.take("a")
        (lease,) = tmp_path.iterdir()
        os.utime(lease, (0, 0))
        leases.start_heartbeats()
        thread = leases._thread
        assert thread.daemon  # a process that fails must not wait for it
        deadline = time.monotonic() + 10
        while lease.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.stat().st_mtime > 0
        leases.close()
        assert not thread.is_alive()
