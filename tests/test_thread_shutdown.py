"""A process ends with its own exit code, whatever its threads are at."""

import subprocess
import sys

import pytest

TORCH = """
import torch

def compute():
    x = torch.ones(1000)
    while True:
        x = x * 1
"""
READ = """
from descend.data import Loading, open_data

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return compute()

next(open_data(Stuck(), Loading(batch_size=4, timeout_seconds=1)).epoch(0))
"""
IN_ADVANCE = """
from descend.data.loading.read_threads import prefetched

def items():
    yield 0
    compute()

taker = prefetched(items(), 2)
next(taker)
"""
SAVE = """
from descend.runtime.checkpoint_manager import _Background

saving = _Background(compute)
"""
ENDS = {
    "a read that is left behind": READ,
    "a read in advance": IN_ADVANCE,
    "a read in advance that is left behind": IN_ADVANCE + "taker.close()",
    "a checkpoint under way": SAVE,
}
MORE = [how for how in ENDS if how != "a read in advance"]


@pytest.mark.parametrize("how", ["a read in advance", *(pytest.param(how, marks=pytest.mark.slow) for how in MORE)])
def test_a_thread_that_is_in_torch_does_not_abort_the_process(how):
    """Without joining nearly all of these end with 134: "terminate called without an active exception"."""
    lines = "\n    ".join((TORCH + ENDS[how]).splitlines())
    done = subprocess.run(
        [sys.executable, "-c", f"try:{lines}\nfinally:\n    raise SystemExit(7)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "terminate" not in done.stderr


def test_a_thread_that_sleeps_does_not_keep_the_process():
    code = """
import threading, time
from descend.machine import join_threads_at_exit
join_threads_at_exit()
threading.Thread(target=time.sleep, args=(3600,), name="descend-read", daemon=True).start()
raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
