"""Each check of parameter groups catches an optimizer that is broken in it."""

from __future__ import annotations

import pytest
from faulty_optimizers import (
    GROUP_CASES,
    FollowsItsDefaults,
    FollowsTheFirstGroup,
    MakesItsRate,
    SharesMomentum,
    assert_only_the_broken_one_fails,
    finding,
)

from descend.conformance import Verdict


@pytest.mark.parametrize("check", GROUP_CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check):
    assert_only_the_broken_one_fails(check)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (FollowsTheFirstGroup, "options of a group", "the lr of a group acts on the other; the weight_decay of a"),
        (FollowsItsDefaults, "options of a group", "the weight_decay of a group is not used"),
        (SharesMomentum, "options of a group", "the momentum of a group acts on the other"),
    ],
)
def test_other_ways_to_break_a_check_are_caught(broken, check, words):
    found = finding(broken, check)
    assert found.verdict is Verdict.FAIL
    assert words in found.seen


def test_a_rate_of_its_own_is_no_failure():
    """An optimizer may ignore `lr`, as long as it does so in every group."""
    assert finding(MakesItsRate, "options of a group").verdict is Verdict.OK
