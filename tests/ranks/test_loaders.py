"""When a process that reads samples for one of two ranks dies or hangs, all end, and none is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ranks.start import begin, end
from system_needs import needs_linux

KILLED = "was killed by SIGKILL at sample"
HANGS = "is not read after 4 seconds: it hangs"
FOR_OTHERS = {"DESCEND_TIMEOUT_SECONDS": "60"}  # the rank that has the cause names it first


@pytest.fixture
def folder(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    columns = {f"c{i}": x[:, i] for i in range(3)}
    pq.write_table(pa.table({**columns, "y": x.sum(1)}), tmp_path / "table.parquet", row_group_size=64)
    return tmp_path


def is_there(process):
    """Whether a process runs; one that ended and whose exit code was not asked for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def left_behind(folder):
    noted = [int(process) for rank in (0, 1) for process in (folder / f"processes{rank}").read_text().split()]
    assert len(noted) == 6
    until = time.monotonic() + 30  # one that was orphaned notices it when its pipe is closed
    while (there := [process for process in noted if is_there(process)]) and time.monotonic() < until:
        time.sleep(0.1)
    return there


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words", "rank"), [("is killed", KILLED, 0), ("is killed", KILLED, 1), ("is suspended", HANGS, 1)]
)
def test_a_process_that_dies_or_hangs_ends_all_ranks_and_is_named(what, words, rank, folder):
    found = end(begin(2, "loaders.py", folder, what, str(rank), fresh=True, **FOR_OTHERS), folder)
    assert [one.code for one in found] == ([3, 6] if rank == 0 else [6, 3]), found
    assert words in found[rank].err
    assert "reader 'parquet' for 'train'" in found[rank].err
    assert "Traceback" not in found[rank].err
    last = found[1 - rank].err.strip().splitlines()[-1]
    assert f"rank {rank}" in last
    assert words in last
    assert left_behind(folder) == []


@needs_linux
@pytest.mark.slow
def test_processes_end_with_their_rank(folder):
    found = end(begin(2, "loaders.py", folder, "rank is killed", "1", fresh=True, **FOR_OTHERS), folder)
    assert [one.code for one in found] == [6, -9], found
    assert left_behind(folder) == []


@needs_linux
@pytest.mark.slow
def test_under_the_command_that_starts_ranks(folder):
    script = Path(__file__).parent / "loaders.py"
    command = [sys.executable, "-m", "descend", "launch", "--ranks", "2", str(script), "is killed", "1"]
    path = os.pathsep.join([str(script.parents[1]), str(script.parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **FOR_OTHERS}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode != 0
    assert KILLED in ended.stderr
    assert left_behind(folder) == []
