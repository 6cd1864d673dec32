import subprocess
import sys
import threading

import pytest

from descend.data.loading.prefetch import prefetched


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "descend-prefetch"]


@pytest.mark.parametrize("ahead", [1, 2, 100])
@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_same_items_in_the_same_order(n, ahead):
    assert list(prefetched(iter(range(n)), ahead)) == list(range(n))
    assert not alive()


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_than_asked_for_is_made_in_advance(ahead):
    made = threading.Semaphore(0)

    def items():
        for i in range(100):
            made.release()
            yield i

    taker = prefetched(items(), ahead)
    assert next(taker) == 0
    for _ in range(ahead + 1):  # the one taken and those in advance
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    taker.close()


def test_closing_ends_the_thread_while_it_waits_for_room():
    taker = prefetched(iter(range(100)), 1)
    next(taker)
    [thread] = alive()
    assert thread.daemon
    taker.close()
    assert not thread.is_alive()


def test_never_started_means_no_thread():
    prefetched(iter(range(3)), 1).close()
    assert not alive()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_comes_out_after_the_items_before_it(error):
    def items():
        yield 1
        yield 2
        raise error

    taker = prefetched(items(), 5)
    assert [next(taker), next(taker)] == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(taker)
    assert caught.value is error
    assert not alive()


def test_a_program_that_ends_in_the_middle_does_not_hang():
    code = (
        "import itertools\n"
        "from descend.data.loading.prefetch import prefetched\n"
        "taker = prefetched(itertools.count(), 2)\n"
        "assert next(taker) == 0\n"
        "raise SystemExit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 7
