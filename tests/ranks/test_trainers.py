"""Trainers as blocks of ranks play as they do on one process; they wait for each other, and none waits in vain."""

import json

import pytest
from ranks import replaced
from ranks.start import begin, end, start
from ranks.test_exactness import largest_difference
from ranks.tournament import outcome, play
from system_needs import needs_linux

TIMEOUT = {"DESCEND_TIMEOUT_SECONDS": "6"}  # a busy host keeps a rank from sending a heartbeat for seconds


def lineage(folder):
    return [json.loads(line) for line in (folder / "tournament.jsonl").read_text().splitlines()]


def alone(folder, trainers, name="binary"):
    folder.mkdir()
    return {str(number): one for number, one in outcome(play(name, trainers=trainers, run_dir=folder / "run")).items()}


def check(ended, expected, tolerance=0.0):
    assert [rank.code for rank in ended] == [0] * len(ended), "\n".join(rank.err for rank in ended)
    for rank in ended:
        for number, one in rank.left.items():
            difference, place = largest_difference(expected[number], one)
            assert difference <= tolerance, (number, place)
    assert {number for rank in ended for number in rank.left} == expected.keys()


@pytest.mark.slow
def test_two_ranks_play_as_one_process_does(tmp_path):
    ended = start(2, "tournament.py", tmp_path / "two", "binary", "1", "2", "1")
    check(ended, alone(tmp_path / "one", 2))
    assert lineage(tmp_path / "two" / "run") == lineage(tmp_path / "one" / "run")
    assert "LTFB (model" in ended[0].out
    assert not ended[1].out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["binary", "sendrecv", "file", "truncation", "evolution"])
def test_four_trainers_play_as_one_process_does(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "checkpoint_file" writes to a folder beside the script's
    expected = alone(tmp_path / "one", 4, name)
    check(start(4, "tournament.py", tmp_path / "four", name, "1", "2", "1"), expected)
    assert lineage(tmp_path / "four" / "run") == lineage(tmp_path / "one" / "run")


@pytest.mark.slow
def test_blocks_of_two_ranks(tmp_path):
    check(start(4, "tournament.py", tmp_path / "four", "binary", "1", "2", "2"), alone(tmp_path / "one", 2), 1e-12)


@pytest.mark.slow
def test_blocks_of_two_ranks_sum_the_gradients_of_weights_that_are_new(tmp_path):
    """In float32, whose sums over ranks round in another order."""
    whole = replaced.play(tmp_path / "one", trainers=2)
    assert {"conv_shim_kernel"} <= {name for one in whole.trainers for name in one.weights}
    expected = {str(number): one for number, one in outcome(whole).items()}
    check(start(4, "replaced.py", tmp_path / "four"), expected, 1e-5)
    assert [row["changed"] for row in lineage(tmp_path / "four" / "run")] == [
        row["changed"] for row in lineage(tmp_path / "one")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "at"), [("signal", "3"), ("signal", "8"), ("signal in a tournament", "2")])
def test_a_signal_to_one_trainer_ends_all_and_they_go_on(what, at, tmp_path):
    expected = alone(tmp_path / "one", 3)
    stopped = start(3, "tournament.py", tmp_path / "three", "binary", "1", "2", "1", what, at)
    assert [rank.code for rank in stopped] == [75] * 3, "\n".join(rank.err for rank in stopped)
    assert all("trainer 1: stopped by SIGTERM" in rank.err for rank in stopped)
    check(start(3, "tournament.py", tmp_path / "three", "binary", "1", "2", "1"), expected)
    assert lineage(tmp_path / "three" / "run") == lineage(tmp_path / "one" / "run")


@pytest.mark.slow
def test_a_trainer_that_is_killed_ends_all_and_they_go_on(tmp_path):
    expected = alone(tmp_path / "one", 2)
    killed = start(2, "tournament.py", tmp_path / "two", "binary", "1", "2", "1", "kill", "8")
    assert [rank.code for rank in killed] == [6, -9]
    assert "rank 1" in killed[0].err.strip().splitlines()[-1]
    check(start(2, "tournament.py", tmp_path / "two", "binary", "1", "2", "1"), expected)
    assert lineage(tmp_path / "two" / "run") == lineage(tmp_path / "one" / "run")


@pytest.mark.slow(seconds=25)
@needs_linux
def test_a_slow_trainer_is_waited_for_and_one_that_hangs_is_not(tmp_path):
    """A slow one takes 1.1 s a step, so a round of it is longer than the timeout."""
    slow = begin(2, "tournament.py", tmp_path / "slow", "binary", "2", "1", "1", "slow", "0", **TIMEOUT)
    ended = end(slow, tmp_path / "slow")
    assert [rank.code for rank in ended] == [0, 0], "\n".join(rank.err for rank in ended)
    hangs = start(2, "tournament.py", tmp_path / "hangs", "binary", "2", "1", "1", "hang", "3", **TIMEOUT)
    assert [rank.code for rank in hangs] == [6, 6]
    assert "rank 1 hangs" in hangs[0].err
