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


def test_a_killed_rank_is_named_and_those_that_torchrun_ended_are_not():
    ended = [(1, 30105, -9), (0, 30104, -15), (2, 30106, 6), (3, 30107, -64), (4, 30108, -200)]
    assert elastic.killed_ranks(ended) == [
        "error: rank 1 (process 30105) was killed by SIGKILL\n",
        "error: rank 3 (process 30107) was killed by SIGRTMAX\n",
        "error: rank 4 (process 30108) was killed by signal 200\n",
    ]
