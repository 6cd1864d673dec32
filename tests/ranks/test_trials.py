"""What ends a run on several ranks: time, a bad sample, a full disk, a signal to the launcher; and starting again."""

import ast
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from ranks.cases import data, fit
from ranks.start import TESTS, begin, end, start
from ranks.trials import SGD

import descend
from descend.runtime import newest_checkpoint, verify


def check_codes(ended, code):
    assert [rank.code for rank in ended] == [code] * len(ended), "\n".join(rank.err for rank in ended)


@pytest.mark.slow
def test_seconds_end_all_ranks_at_one_step(tmp_path):
    ended = start(3, "trials.py", tmp_path, "seconds")
    check_codes(ended, 0)
    assert len({json.dumps(rank.left) for rank in ended}) == 1
    assert ended[0].left["reason"].endswith("of 3 seconds")
    # All wait for the slowest rank, which sleeps 0.06 s a step. The clock is that of rank 0 when it comes to a step's
    # sums, 0.04 s before the slowest, and that wait is not counted in the last of the 5 steps of an epoch.
    steps = ended[0].left["steps"]
    assert 1 < steps <= (3 + 0.04 * (steps // 5 + 1)) / 0.06 + 1


@pytest.mark.slow
def test_a_bad_sample_is_named_with_its_rank(tmp_path):
    ended = start(2, "trials.py", tmp_path, "poisoned")
    check_codes(ended, 4)
    assert "rank 1: epoch 1, mini-batch 1: the values of these samples are not finite: sample 7" in ended[0].err
    assert "rank 0:" not in ended[0].err
    assert not ended[1].err.strip()  # what all agree on, the first rank says
    verify(newest_checkpoint(tmp_path / "run" / "checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["unsaved at the end", "unsaved"])
def test_a_save_that_fails_on_the_first_rank_fails_on_all(when, tmp_path):
    ended = start(3, "trials.py", tmp_path, when)
    check_codes(ended, 5)
    assert "the disk is full" in ended[0].err
    assert not any("full" in rank.err for rank in ended[1:])


@pytest.mark.slow
def test_settings_that_differ_are_said_once(tmp_path):
    ended = start(3, "trials.py", tmp_path, "different")
    check_codes(ended, 2)
    assert "batch_size: 5 on rank 0; 6 on rank 1; 7 on rank 2" in ended[0].err
    assert not any(rank.err.strip() for rank in ended[1:])


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_does_not_come_is_named(missing, tmp_path):
    ended = end(begin(3, "trials.py", tmp_path, "unmet", missing=(missing,)), tmp_path)
    check_codes(ended, 6)
    for rank in ended:
        assert f"error: rank {missing} of 3 did not connect" in rank.err
        assert "within 4 seconds" in rank.err


def launched(folder, *words, **more):
    """`descend launch` of a trial, in a folder."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}
    command = [sys.executable, "-m", "descend", "launch", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_a_launcher_starts_ranks_again_which_go_on_from_their_checkpoint(tmp_path):
    trial = str(TESTS / "ranks" / "trials.py")
    process = launched(tmp_path, "--ranks", "2", "--restarts", "1", trial, "restarted")
    out = process.communicate(timeout=200)[0]
    assert process.returncode == 0, out
    assert (tmp_path / "killed").exists()
    whole = fit(some=data(40), optimizer=SGD, batch_size=5, stop=descend.Epochs(2))
    found = ast.literal_eval((tmp_path / "weights").read_text())
    for values, expected in zip(found, whole.weights.values(), strict=True):
        torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), expected, rtol=1e-12, atol=1e-12)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["mode"], row["step"]) for row in rows] == [("restart", 4), ("train", 8), ("train", 16)]


@pytest.mark.slow(seconds=30)
def test_ranks_that_are_started_again_do_not_read_what_those_before_them_left(tmp_path):
    """torchrun by itself keeps its store over restarts, with all words and addresses."""
    options = ["--nproc-per-node=2", "--max-restarts=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(TESTS / "ranks" / "trials.py"), "torn"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "DESCEND_TIMEOUT_SECONDS": "10"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "raised on purpose" in ended.stderr
    assert "rank 1 has sent no heartbeat" in ended.stderr
    assert sorted(file.name for file in tmp_path.glob("attempt*")) == ["attempt2-rank0", "attempt2-rank1"]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["0", "2"])
def test_a_signal_to_the_launcher_ends_with_75(restarts, tmp_path):
    trial = str(TESTS / "ranks" / "trials.py")
    process = launched(tmp_path, "--ranks", "2", "--restarts", restarts, trial, "endless")
    until = time.monotonic() + 100
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=100)[0]
    assert process.returncode == 75, out
    assert "stopped by SIGTERM" in out
    verify(newest_checkpoint(tmp_path / "run" / "checkpoints"))
