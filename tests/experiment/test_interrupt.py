"""Ctrl-C on a real process: it ends soon, says where it was, has saved everything, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from descend.experiment import experiment_text
from descend.runtime import verify
from descend.zoo import demo_experiment


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stops_on_request_with_everything_saved(tmp_path, number):
    text = experiment_text(demo_experiment("digits")).replace("max_epochs: 20", "max_epochs: 100000")
    (tmp_path / "long.prototext").write_text(text)
    command = [sys.executable, "-m", "descend", "run", "long.prototext", "--run-dir", "run"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    rows = tmp_path / "run" / "metrics.jsonl"
    for _ in range(600):
        if rows.exists() and rows.read_text().count("\n") >= 2:
            break
        time.sleep(0.1)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=30)  # the promise is 5 s; a crowded machine may be slower
    assert process.returncode == 75
    assert "after step" in said
    assert "in epoch" in said
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert str(checkpoint.relative_to(tmp_path)) in said
    verify(checkpoint)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
