import json
import os
import threading
import time

import pytest

from descend.errors import ConfigurationError
from descend.runtime.directory_lock import OWNER, DirectoryLock, HeartbeatLock


@pytest.fixture
def dead_owner(tmp_path):
    """A folder whose owner was killed: its name is there, and the lock on it is free."""
    lease = DirectoryLock(tmp_path)
    facts = json.loads((tmp_path / OWNER).read_text())
    lease.release()
    (tmp_path / OWNER).write_text(json.dumps({**facts, "token": "of the dead"}))
    return tmp_path


def test_of_two_that_found_the_owner_dead_at_once_one_has_the_folder(dead_owner, monkeypatch):
    """The slower one comes back from its look at the owner when the quicker one is at work already."""
    both_looked, first_has_it, looked = threading.Barrier(2), threading.Event(), DirectoryLock._is_free
    taken, refused = [], []

    def look(self, found):
        free = looked(self, found)
        if found["token"] == "of the dead":
            both_looked.wait()
            if threading.current_thread().name == "slower":
                first_has_it.wait()
        return free

    def take():
        try:
            taken.append(DirectoryLock(dead_owner))
        except ConfigurationError as error:
            refused.append(str(error))
        first_has_it.set()

    monkeypatch.setattr(DirectoryLock, "_is_free", look)
    takers = [threading.Thread(target=take, name=name) for name in ("quicker", "slower")]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert len(taken) == len(refused) == 1
    assert "is in use by process" in refused[0]
    assert json.loads((dead_owner / OWNER).read_text())["token"] != "of the dead"
    taken[0].release()
    assert not (dead_owner / OWNER).exists()


def test_an_owner_that_ends_while_it_is_looked_at_leaves_the_folder_free(dead_owner, monkeypatch):
    looked = DirectoryLock._is_free

    def look(self, found):
        free = looked(self, found)
        (dead_owner / OWNER).unlink()
        return free

    monkeypatch.setattr(DirectoryLock, "_is_free", look)
    lease = DirectoryLock(dead_owner)
    assert lease.lost() is None
    assert (dead_owner / OWNER).exists()
    lease.release()


def test_a_lock_is_created_once_and_released_by_its_holder_alone(tmp_path):
    one, other = HeartbeatLock(tmp_path / "lock"), HeartbeatLock(tmp_path / "lock")
    assert one.create()
    assert not other.create()
    assert one.is_held()
    assert not other.is_held()
    other.release()
    assert one.renew()
    one.release()
    assert list(tmp_path.iterdir()) == []
    assert other.create()


def test_without_hard_links_creation_is_exclusive_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr("os.link", no_links)
    one, other = HeartbeatLock(tmp_path / "lock"), HeartbeatLock(tmp_path / "lock")
    assert one.create()
    assert not other.create()
    assert one.is_held()
    one.release()
    assert list(tmp_path.iterdir()) == []


def test_the_age_of_a_heartbeat_is_by_the_clock_of_the_file_system(tmp_path):
    lock = HeartbeatLock(tmp_path / "lock")
    assert lock.age_seconds() is None
    assert lock.create()
    os.utime(lock.path, (time.time() - 100, time.time() - 100))
    assert 99 < lock.age_seconds() < 110
    assert lock.renew()
    assert lock.age_seconds() < 10


def test_a_lock_that_was_taken_over_is_lost(tmp_path):
    one, other = HeartbeatLock(tmp_path / "lock"), HeartbeatLock(tmp_path / "lock")
    assert one.create()
    assert other.take_over(other.read())
    assert not one.renew()
    assert one.lost_to.startswith("process ")
    one.release()
    assert other.is_held()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_who_renames_the_lock_of_a_faster_process_gives_it_back(tmp_path, monkeypatch):
    """Both read the dead holder's file; the slower one renames what is by then the faster one's."""
    dead, faster, slower = (HeartbeatLock(tmp_path / "lock") for _ in range(3))
    assert dead.create()
    found = dead.read()
    assert faster.take_over(found)
    monkeypatch.setattr(slower, "read", lambda: found)
    assert not slower.take_over(found)
    assert faster.is_held()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
