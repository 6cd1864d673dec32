"""A run directory belongs to the first rank; a signal on any rank ends all at one step; any number of ranks resumes."""

import json

import pytest
from ranks.runs import run
from ranks.start import start
from ranks.test_exactness import largest_difference


def joined_ids(ended):
    """The numbers of the samples of each step, those of all ranks after each other."""
    return {step: [i for rank in ended for i in rank.left["ids"][step]] for step in ended[0].left["ids"]}


def stop_and_go_on(first, second, folder, **more):
    stopped = start(first, "runs.py", folder, "3", "8", str(first - 1), **more)
    assert [rank.code for rank in stopped] == [75] * first, "\n".join(rank.err for rank in stopped)
    assert "stopped by SIGTERM after step 8" in stopped[0].err
    assert not any("stopped" in rank.err for rank in stopped[1:])  # what all ranks agree on, one of them says
    assert [checkpoint.name for checkpoint in (folder / "run" / "checkpoints").iterdir()] == ["step-8"]
    went_on = start(second, "runs.py", folder, "3", **more)
    assert [rank.code for rank in went_on] == [0] * second, "\n".join(rank.err for rank in went_on)
    whole = run(3, run_dir=str(folder / "whole"))
    assert {**joined_ids(stopped), **joined_ids(went_on)} == whole["ids"]
    for rank in went_on:
        assert rank.left["rows"] == went_on[0].left["rows"]
        assert rank.left["times"] == went_on[0].left["times"]
    difference, place = largest_difference(
        {"rows": whole["rows"], "weights": whole["weights"]},
        {"rows": went_on[0].left["rows"], "weights": went_on[0].left["weights"]},
    )
    assert difference < 1e-12, place
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["mode"] for row in rows if row["mode"] != "restart"] == ["train", "validation"] * 3


@pytest.mark.slow
def test_a_signal_on_one_of_two_ranks_and_then_two(tmp_path):
    stop_and_go_on(2, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(4, 1), (1, 3), (3, 4), (2, 8)])
def test_a_run_goes_on_with_another_number_of_ranks(first, second, tmp_path):
    stop_and_go_on(first, second, tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_from_one_number_of_ranks_to_the_next(tmp_path):
    """Stopped within the first epoch, at the end of it and within the second; 5 steps are an epoch."""
    ids = {}
    for ranks, step in ((1, 3), (4, 5), (2, 9), (3, None)):
        ended = start(ranks, "runs.py", tmp_path, "3", *([str(step), "0"] if step else []))
        assert [rank.code for rank in ended] == [75 if step else 0] * ranks, "\n".join(rank.err for rank in ended)
        ids |= joined_ids(ended)
    whole = run(3, run_dir=str(tmp_path / "whole"))
    assert ids == whole["ids"]
    for name in ("rows", "weights"):
        assert largest_difference(whole[name], ended[0].left[name])[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (2, 3)])
def test_a_sharded_optimizer_goes_on_with_another_number_of_ranks(first, second, tmp_path):
    stop_and_go_on(first, second, tmp_path, SHARD="1")
