import json
import threading

import pytest

from descend.errors import ConfigurationError
from descend.runtime.directory_lock import OWNER, DirectoryLock


@pytest.fixture
def dead_owner(tmp_path):
    """A folder whose owner was killed: its name is there, and nobody holds the lock on it."""
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
