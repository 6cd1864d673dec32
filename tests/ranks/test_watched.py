"""What callbacks see of a mini-batch is all of it, whichever ranks share it."""

import itertools

import pytest
from ranks.start import start
from ranks.test_exactness import largest_difference
from ranks.watched import both, files


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_files_and_rows_of_callbacks_are_those_of_one_rank(ranks, tmp_path):
    expected = both(str(tmp_path / "one"))
    ended = start(ranks, "watched.py", tmp_path / "many")
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    for rank in ended:
        difference, place = largest_difference(expected, rank.left["rows"])
        assert difference <= 1e-12, place
    alone = files(tmp_path / "one")
    assert {"cut/train-epoch1.csv", "cut/test.csv", "jointly/validation-epoch2.csv"} < alone.keys()
    difference, place = largest_difference(alone, files(tmp_path / "many"))
    assert difference <= 1e-6, place  # files have nine digits
    draws = list(itertools.chain(*([tuple(row) for row in rank.left["drawn"]] for rank in ended)))
    assert len(set(draws)) == len(draws) == 20  # no two samples share them
