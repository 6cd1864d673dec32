"""A module that `fully_shard` has cut up is trained as a whole one is: the same weights, rows and files."""

import pytest
from ranks.start import start
from ranks.test_exactness import largest_difference
from ranks.wrapped import CASES, COPIES, outcome


def check(ranks, names, folder):
    ended = start(ranks, "wrapped.py", folder, *names)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    for name in names:
        for rank in ended:
            assert rank.left[name] == ended[0].left[name], f"{name}: the ranks differ"
        difference, place = largest_difference(outcome(name), ended[0].left[name])
        assert difference < 1e-12, f"{name}: {difference:.2g} at {place}"


def test_two_ranks_give_what_a_whole_module_gives(tmp_path):
    check(2, ["ignored on one rank", "fewer samples than ranks", "clipping, Adam and decay"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_gives_what_a_whole_module_gives(ranks, tmp_path):
    check(ranks, list(CASES), tmp_path)


@pytest.mark.slow
def test_parts_with_copies_give_what_a_whole_module_gives(tmp_path):
    check(4, list(COPIES), tmp_path)
