"""User code for samples in processes of its own: the same samples, and errors that say where."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from descend.data.formats.python_module import imported
from descend.data.formats.python_processes import SampleTaker
from descend.errors import DataError

MODULE = """
import os, signal
import numpy as np

def take(number):
    if number == 90:
        raise KeyError("lost")
    if number == 91:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"samples": [number, os.getpid()]}

def source():
    return take
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "takes_of_a_test", raising=False)
    (tmp_path / "takes_of_a_test.py").write_text(MODULE)
    yield imported("takes_of_a_test", str(tmp_path)).source
    del sys.modules["takes_of_a_test"]


def test_without_workers_samples_are_made_here(source):
    rows = SampleTaker(source, 1, "reader").take(np.array([3, 1]))
    assert [row["samples"] for row in rows] == [[3, os.getpid()], [1, os.getpid()]]
    with pytest.raises(DataError, match="reader, sample 90 raises KeyError: 'lost'"):
        SampleTaker(source, 0, "reader").take(np.array([90]))


@pytest.mark.slow
def test_processes_make_the_same_samples_and_say_where_they_fail(source):
    taker = SampleTaker(source, 2, "reader")
    assert taker.take(np.zeros(0, np.int64)) == []
    for _ in range(2):
        rows = taker.take(np.array([5, 2, 7, 7, 0]))
        assert [row["samples"][0] for row in rows] == [5, 2, 7, 7, 0]
    makers = {int(row["samples"][1]) for row in taker.take(np.arange(40))}
    assert os.getpid() not in makers
    with pytest.raises(DataError, match="reader, sample 90 raises KeyError: 'lost'"):
        taker.take(np.array([1, 90, 2]))
    with pytest.raises(DataError, match="a process that reads samples has died, near samples 4 to 91"):
        taker.take(np.array([4, 91]))


@pytest.mark.slow
def test_no_process_outlives_a_driver_that_is_killed(tmp_path):
    (tmp_path / "takes_of_a_test.py").write_text(MODULE)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, numpy as np, takes_of_a_test\n"
        "from descend.data.formats.python_processes import SampleTaker\n"
        "if __name__ == '__main__':\n"
        "    rows = SampleTaker(takes_of_a_test.source, 2, 'reader').take(np.arange(2))\n"
        "    print(*{int(row['samples'][1]) for row in rows}, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=False)
    pids = [int(word) for word in ended.stdout.split()]
    assert pids
    until = time.monotonic() + 30
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
