"""Exit codes of ranks that torchrun starts, and which of its lines are shown."""

import logging

import pytest

from descend.runtime import elastic


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], 6),
        ([6, 6], 6),
        ([6, 2, 3], 2),  # in the order of time
        ([-9, 6], 6),  # a killed rank has no code of its own
        ([-9, 1], 1),
        ([75, 75], 75),
    ],
)
def test_the_first_code_that_is_not_the_loss_of_another_rank(codes, expected):
    assert elastic.exit_code(iter(codes)) == expected


def record(*args):
    return logging.LogRecord("torch", logging.ERROR, "", 0, "exitcode: %d", args, None)


@pytest.mark.parametrize(("args", "shown"), [((-9, "x"), True), ((1, "x"), False), (("x",), False), ((), False)])
def test_torchruns_lines_are_shown_for_killed_ranks_alone(args, shown):
    assert elastic._is_new_information(record(*args)) is shown
