"""What a step of several ranks does beside its passes; that it comes to the same is a matter of test_exactness.py."""

import sys

import pytest
from ranks.start import start

STEPS = 5
WEIGHTS = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ended = start(2, "sums.py", tmp_path_factory.mktemp("sums"))
    assert [rank.code for rank in ended] == [0, 0], "\n".join(rank.err for rank in ended)
    return [rank.left for rank in ended]


def test_a_step_is_one_sum_of_gradients_and_one_meeting(ranks):
    """Four small weights are one bucket. The meeting is waited for at once, the gradients after it."""
    expected = {"waited for": 1, "all_reduce": 2, "all_gather": 0, "broadcast": 0}
    assert [left["all count"]["steps"] for left in ranks] == [[expected] * (STEPS - 1)] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
def test_large_gradients_of_ranks_on_one_host_are_summed_between_two_meetings(ranks):
    expected = {"waited for": 2, "all_reduce": 2, "all_gather": 0, "broadcast": 0}
    assert [left["large weights"]["steps"] for left in ranks] == [[expected] * (STEPS - 1)] * 2


def test_gradients_are_gone_through_afterwards_only_where_something_is_left_to_divide_by(ranks):
    """Mini-batches have 4 samples. In one of the five a label does not count, so its gradients are divided by 3 / 4."""
    assert [left["all count"]["divisions"] for left in ranks] == [0, 0]
    assert [left["one is ignored"]["divisions"] for left in ranks] == [WEIGHTS, WEIGHTS]
