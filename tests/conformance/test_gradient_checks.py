"""Each check over kinds of gradients catches an optimizer that is broken in it."""

from __future__ import annotations

import pytest
import torch
from faulty_optimizers import (
    GRADIENT_CASES,
    ClipsInPlace,
    KeepsTheGradientAsMomentum,
    RestsAtFirst,
    StopsAtNone,
    assert_only_the_broken_one_fails,
    finding,
)

from descend.conformance import Verdict


@pytest.mark.parametrize("check", GRADIENT_CASES)
def test_a_broken_optimizer_is_caught_and_a_sound_one_passes(check):
    assert_only_the_broken_one_fails(check)


def test_torch_adam_writes_nan_on_zero_fp16_gradients():
    found = finding(torch.optim.Adam, "fp16 zero gradients")
    assert found.verdict is Verdict.FAIL
    assert found.seen == "29 of 29 weights became NaN or infinite"


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (KeepsTheGradientAsMomentum, "caller's gradients", "overwritten in step 2, those of step 1"),
        (ClipsInPlace, "caller's gradients", "3 of 3 gradients were overwritten in step 3"),
        (StopsAtNone, "no gradient", "weights beside it, which have gradients, did not move"),
    ],
)
def test_other_ways_to_break_a_check_are_caught(broken, check, words):
    found = finding(broken, check)
    assert found.verdict is Verdict.FAIL
    assert words in found.seen


def test_a_rule_that_rests_at_first_may_skip_absent_gradients():
    assert finding(RestsAtFirst, "no gradient").verdict is Verdict.OK
