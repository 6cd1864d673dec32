import os
import threading

import pytest
from system_needs import processors, require

from descend.data.loading import read_threads
from descend.data.loading.read_threads import in_threads, share_processors


def test_results_are_in_order_and_from_several_threads():
    used = set()
    together = threading.Barrier(2, timeout=20)

    def task(number):
        used.add(threading.get_ident())
        if number < 2:
            together.wait()  # two tasks at once, or none
        return number * number

    require("two processors", processors() > 1)
    assert in_threads(task, 50) == [number * number for number in range(50)]
    assert len(used) > 1


def test_the_first_error_is_raised():
    def task(number):
        if number >= 3:
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        in_threads(task, 20)


def test_few_tasks_need_no_threads():
    assert in_threads(lambda _: threading.current_thread(), 2) == [threading.current_thread()] * 2
    assert in_threads(str, 0) == []


@pytest.mark.parametrize(("processes", "threads"), [(1, 4), (3, 2), (5, 0), (9, 0)])
def test_processes_that_read_share_the_processors(processes, threads, monkeypatch):
    """A single thread would be the caller's own, so it is none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(read_threads, "_processes", 1)
    share_processors(processes)
    pool = read_threads._pool.__wrapped__(0)
    assert (0 if pool is None else pool._max_workers) == threads
