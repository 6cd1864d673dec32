"""A process ends with its own exit code, whatever its threads are at."""

import subprocess
import sys

import pytest

READ = """
import torch
from descend.data import Loading, open_data

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        x = torch.ones(1000)
        while i == 5:
            x = x * 1
        return x

feed = open_data(Stuck(), Loading(batch_size=4, shuffle=False, timeout_seconds=TIMEOUT))
steps = feed.epoch(0)
next(steps)
"""
ENDS = {
    "a read that is left behind": READ.replace("TIMEOUT", "1") + "next(steps)",
    "a read in advance": READ.replace("TIMEOUT", "None") + "steps.close()",
    "a read in advance that nobody has closed": READ.replace("TIMEOUT", "None"),
    "a checkpoint under way": """
import torch
from descend.runtime.archive import _Background

def work():
    x = torch.ones(1000)
    while True:
        x = x * 1

saving = _Background(work)
""",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
def test_a_thread_that_is_in_torch_does_not_abort_the_process(code):
    """torch alone ends nearly all of these with 134: "terminate called without an active exception"."""
    ending = f"try:\n{code.replace(chr(10), chr(10) + '    ')}\nfinally:\n    raise SystemExit(7)"
    done = subprocess.run([sys.executable, "-c", ending], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "terminate" not in done.stderr


def test_a_thread_that_sleeps_does_not_keep_the_process():
    code = """
import threading, time
from descend.rest import rest_at_exit
rest_at_exit()
threading.Thread(target=time.sleep, args=(3600,), name="descend-read", daemon=True).start()
raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
