"""Each check over kinds of tensors catches an optimizer that is broken in it."""

from __future__ import annotations

import pytest
from faulty_optimizers import (
    TENSOR_CASES,
    LeavesSingleNumbersOut,
    MatricesAlone,
    RestsAtFirst,
    assert_only_the_broken_one_fails,
    finding,
)

from descend.conformance import Verdict


@pytest.mark.parametrize("check", TENSOR_CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check):
    assert_only_the_broken_one_fails(check)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (LeavesSingleNumbersOut, "0-d tensor", "neither moved"),
    ],
)
def test_other_ways_to_break_a_check_are_caught(broken, check, words):
    found = finding(broken, check)
    assert found.verdict is Verdict.FAIL
    assert words in found.seen


def test_what_a_rule_does_by_design_is_no_failure():
    """A rule that rests at first moves later; a rule for matrices takes no number."""
    assert finding(RestsAtFirst, "zero weights").verdict is Verdict.OK
    assert finding(RestsAtFirst, "0-d tensor").verdict is Verdict.OK
    assert finding(MatricesAlone, "0-d tensor").seen == "takes no vector of one either: matrices alone"
    assert finding(MatricesAlone, "0-d tensor").verdict is Verdict.NOT_APPLICABLE
