"""Each check of saving, copying and growing catches an optimizer that is broken in it."""

from __future__ import annotations

import pytest
import torch
from faulty_optimizers import STATE_CASES, AsksTwice, ForgetsTheRate, assert_only_the_broken_one_fails, finding

from descend.conformance import Verdict


@pytest.mark.parametrize("check", STATE_CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check):
    assert_only_the_broken_one_fails(check)


def test_torch_loads_a_state_for_the_wrong_weights():
    assert finding(torch.optim.Adam, "state by name").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (ForgetsTheRate, "state round trip", "apart in displacement"),
        (AsksTwice, "closure", "evaluated the closure 2 times"),
    ],
)
def test_other_ways_to_break_a_check_are_caught(broken, check, words):
    found = finding(broken, check)
    assert found.verdict is Verdict.FAIL
    assert words in found.seen
