"""When a rank goes wrong, all end soon, with the first cause printed last, and the checkpoint is good."""

import pytest
from ranks.start import begin, end

from descend.runtime import newest_checkpoint, verify

# Only who hangs is waited for, and a busy host keeps a good rank from sending a heartbeat for seconds.
HANGS = ["sleeps", "is suspended", "sleeps in a backward pass", "sleeps at the end"]
TIMEOUTS = {what: {"DESCEND_TIMEOUT_SECONDS": "10"} for what in HANGS}
TIMEOUTS["hangs in a save"] = {"DESCEND_TIMEOUT_SECONDS": "3"}  # who writes is waited for ten times as long


def ended(what, rank, ranks, folder, *group):
    processes = begin(ranks, "faults.py", folder, what, str(rank), *group, **TIMEOUTS.get(what, {}))
    return end(processes, folder)


def check(found, rank, code, words, folder, newest_name="step-4"):
    assert [other.code for i, other in enumerate(found) if i != rank] == [6] * (len(found) - 1), found
    assert found[rank].code == code, found[rank]
    for i, other in enumerate(found):
        if i != rank:
            last = other.err.strip().splitlines()[-1]
            assert f"rank {rank}" in last, other.err
            assert words in last, other.err
    newest = newest_checkpoint(folder / "run" / "checkpoints")
    assert newest is not None
    assert newest.name == newest_name
    verify(newest)


@pytest.mark.slow
def test_a_rank_that_raises_ends_all(tmp_path):
    found = ended("raises", 1, 2, tmp_path)
    check(found, 1, 1, "ValueError: sample", tmp_path)
    assert found[1].err.strip().splitlines()[-1].endswith("is not available")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("raises", 1, "ValueError: sample"),
        ("is killed", -9, "crashed"),
        ("sleeps", 6, "hangs"),
        ("is suspended", -9, ""),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_one_of_four_ranks(what, code, words, rank, tmp_path):
    check(ended(what, rank, 4, tmp_path), rank, code, words, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "what", "code", "words"),
    [
        ("theirs", "sleeps", 6, "hangs"),
        ("cut", "sleeps", 6, "hangs"),
        ("cut", "sleeps in a backward pass", 6, "hangs"),
        ("cut", "is killed", -9, "crashed"),
    ],
)
def test_a_rank_of_a_group_that_the_user_has_made(group, what, code, words, tmp_path):
    check(ended(what, 1, 2, tmp_path, group), 1, code, words, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["ours", "cut"])
@pytest.mark.parametrize("what", ["renames", "exchanges"])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_whose_directory_is_renamed_save_there_together(what, rank, group, tmp_path):
    found = ended(what, rank, 2, tmp_path, group)
    assert [rank.code for rank in found] == [5, 5]
    assert f"(the one in use was renamed to {tmp_path / 'away'})" in found[0].err
    assert "continue the run with run_dir=" in found[0].err
    newest = newest_checkpoint(tmp_path / "away" / "checkpoints")
    assert newest is not None
    assert int(newest.name.removeprefix("step-")) >= 5  # the updates that were made until all had heard of it
    assert f"is saved in {newest}" in found[0].err
    verify(newest)
    assert [path.name for path in tmp_path.glob("run/*")] == (["mine"] if what == "exchanges" else [])


@pytest.mark.slow
def test_a_rank_that_never_comes_to_the_end_is_named_by_the_others(tmp_path):
    check(ended("sleeps at the end", 1, 2, tmp_path), 1, 6, "hangs", tmp_path, "step-16")


@pytest.mark.slow(seconds=35)
def test_a_rank_that_hangs_while_it_writes_a_checkpoint_is_named_by_the_others(tmp_path):
    check(ended("hangs in a save", 0, 2, tmp_path), 0, 6, "hangs", tmp_path)


@pytest.mark.slow
def test_a_step_that_no_rank_can_leave_says_what_to_do_where_memory_runs_out(tmp_path):
    found = ended("has no memory", 1, 2, tmp_path, "cut")
    check(found, 1, 1, "OutOfMemoryError: CUDA out of memory", tmp_path)
    assert "set micro_batch_size" in found[1].err


@pytest.mark.slow
def test_a_rank_with_fewer_batches_is_found_out_before_it_leaves_the_others(tmp_path):
    found = ended("has fewer batches", 1, 4, tmp_path)
    assert [rank.code for rank in found] == [3] * 4
    assert "ranks have come to different places" in found[0].err
    assert "mini-batch 4 of 5 samples, the last, learning rates" in found[0].err
    assert not any(rank.err for rank in found[1:])


@pytest.mark.slow
def test_a_rank_whose_weights_drift_away_is_named_with_the_weights(tmp_path):
    found = ended("drifts", 2, 3, tmp_path)
    assert [rank.code for rank in found] == [3] * 3
    assert "after 16 updates the weights of the ranks have drifted apart: '0.weight' of rank 2" in found[0].err
