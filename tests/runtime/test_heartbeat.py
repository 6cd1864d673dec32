"""The messages of watchdogs in a key-value store, and what /proc says of the process of a heartbeat."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from system_needs import needs_linux
from torch import distributed

from descend.runtime import Communicator
from descend.runtime.communicator import RankStatus
from descend.runtime.heartbeat import HeartbeatStore, is_dead, is_on_this_host, is_suspended, work_done


@pytest.fixture
def ranks():
    store = distributed.HashStore()
    return [HeartbeatStore(store, Communicator(rank, 2, status=RankStatus())) for rank in range(2)]


def test_a_heartbeat_says_what_the_rank_does(ranks):
    status = ranks[0]._communicator.status
    status.begun = lambda: 7
    status.steps = 3
    with status.busy():
        status.begin_wait("an all-reduce")
        ranks[0].send(1)
    heartbeat, since = ranks[1].read(0, now=5.0)
    assert since == 5.0
    assert {key: heartbeat[key] for key in ("steps", "busy", "waits", "waiting", "collectives")} == {
        "steps": 3,
        "busy": True,
        "waits": 1,
        "waiting": True,
        "collectives": 7,
    }
    assert ranks[1].read(0, now=6.0)[1] == 5.0  # no newer one
    ranks[0].send(2)
    assert ranks[1].read(0, now=7.0)[1] == 7.0
    assert ranks[1].last_read(0)["number"] == 2


def test_a_rank_without_a_heartbeat(ranks):
    assert ranks[1].read(0, now=1.0) == (None, 1.0)
    assert ranks[1].last_read(0) is None


def test_counters_and_exits_are_common_to_all_ranks(ranks):
    assert ranks[0].count_finished(1) == 1
    assert ranks[1].count_finished(1) == 2
    assert ranks[0].count_failed(1) == 1
    assert ranks[1].count_failed() == 1
    assert not ranks[1].has_exited(0)
    ranks[0].mark_exited()
    assert ranks[1].has_exited(0)
    ranks[0].mark_exited(1)
    assert ranks[0].has_exited(1)


def test_a_store_that_is_lost_is_not_written(ranks):
    ranks[0].lost = True
    ranks[0].mark_exited()
    assert not ranks[1].has_exited(0)


def test_an_error_of_rank_zero_is_recognized(ranks):
    ranks[0].write_rank_zero_error("DataError x")
    assert ranks[1].is_rank_zero_error("DataError x", 0.1)
    assert not ranks[1].is_rank_zero_error("DataError y", 0.1)


@needs_linux
def test_states_of_the_process_of_a_heartbeat():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stat = Path(f"/proc/{child.pid}/stat")
    started = stat.read_text().rpartition(")")[2].split()[19]
    heartbeat = {"pid": child.pid, "host": socket.gethostname(), "started": started}
    assert is_on_this_host(heartbeat)
    assert not is_dead(heartbeat)
    assert is_dead({**heartbeat, "started": "1"})  # another process has its number
    assert not is_on_this_host({**heartbeat, "host": "elsewhere"})
    assert not is_dead({**heartbeat, "host": "elsewhere"})
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert is_suspended(heartbeat)
    child.kill()
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert is_dead(heartbeat)  # although its parent has not waited for it
    child.wait()


def test_work_changes_while_the_main_thread_computes():
    before, began = work_done(), time.process_time()
    assert before
    while time.process_time() - began < 0.1:
        pass
    assert work_done() != before
