"""A batch is a batch: weights, history and reason of a run are those of one rank, whatever the number of ranks."""

import functools
import math

import pytest
from ranks import at_exit, dropped
from ranks.cases import CASES, outcome
from ranks.start import start


def largest_difference(a, b, path="", floor=1e-3):
    """The largest relative difference of numbers, infinite where anything else differs; with its place.

    Entries of a row are compared relative to the largest of them: so do sums round, by how much depends on the vector
    width of the processor, and an entry much smaller than its neighbours is a difference of theirs.
    """
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        return max((largest_difference(a[key], b[key], f"{path}/{key}") for key in a), default=(0.0, path))
    if isinstance(a, list):
        assert len(a) == len(b), path
        numbers = [abs(x) for x in a if isinstance(x, float) and math.isfinite(x)]
        floor = max([1e-3, *numbers])
        return max((largest_difference(x, y, path, floor) for x, y in zip(a, b, strict=True)), default=(0.0, path))
    if not isinstance(a, float):
        return (0.0 if a == b else math.inf), path
    same = a == b or (math.isnan(a) and math.isnan(b))
    return (0.0 if same else abs(a - b) / max(abs(a), floor)), path


alone = functools.cache(outcome)  # what several tests of this process compare with


def check(ranks, names, folder, alone=alone, tolerance=1e-12):
    ended = start(ranks, "cases.py", folder, *names)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    compare([rank.left for rank in ended], names, alone, tolerance)


def compare(ranks, names, alone, tolerance=1e-12):
    """All ranks have come to the same, and to what this process comes to by `alone`."""
    for name in names:
        for rank in ranks:
            assert rank[name] == ranks[0][name], f"{name}: the ranks differ"
        difference, place = largest_difference(alone(name), ranks[0][name])
        assert difference < tolerance, f"{name}: {difference:.2g} at {place}"


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(("ranks", "cases"), [(2, slice(0, None, 2)), (3, slice(None)), (4, slice(1, None, 2))])
def test_any_number_of_ranks_gives_what_one_gives(ranks, cases, tmp_path):
    """Every case on three ranks, which share no mini-batch evenly, and on either two or four."""
    check(ranks, list(CASES)[cases], tmp_path)


@pytest.mark.slow
def test_a_graph_gives_on_two_ranks_what_it_gives_on_one(tmp_path, monkeypatch):
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    check(2, ["a graph"], tmp_path / "two", outcome, tolerance=1e-4)
    rows = [(tmp_path / where / "run" / "metrics.jsonl").read_text().splitlines() for where in ("alone", "two")]
    assert len(rows[0]) == len(rows[1])


@pytest.mark.slow
def test_inference_on_two_ranks_gives_all_outputs_in_order(tmp_path, monkeypatch):
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    check(2, ["inference"], tmp_path / "two", outcome, tolerance=1e-4)


@pytest.mark.slow
def test_sharing_out_the_optimizer_changes_no_bit(tmp_path):
    """Two ranks have one sum, however it is made; in shared memory the order is that of any number of ranks."""
    large = ("large", "large, shared out")
    adam = [("clipping, Adam and decay", "the same, sharded"), ("LAMB", "sharded LAMB")]
    windows = ("several mini-batches of an update", "the same, shared out")
    for ranks, pairs in ((2, [*adam, windows, large]), (3, [large])):
        ended = start(ranks, "cases.py", tmp_path, *(name for pair in pairs for name in pair))
        assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
        for whole, sharded in pairs:
            assert ended[0].left[whole] == ended[0].left[sharded]


@pytest.mark.slow
def test_a_wrapper_whose_group_was_left_can_be_let_go(tmp_path):
    """torch alone stands still in most such runs: its threads and the one that lets go wait for each other."""
    assert [rank.left for rank in start(1, "dropped.py", tmp_path)] == [dropped.TIMES]


@pytest.mark.slow
def test_a_process_can_end_right_after_a_collective(tmp_path):
    """torch alone aborts in most such processes, where a thread of gloo lets go of its tensors too late."""
    assert [rank.left for rank in start(1, "at_exit.py", tmp_path)] == [[0] * at_exit.TIMES]
