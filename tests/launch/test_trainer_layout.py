"""Which ranks train which model."""

import pytest

from descend.errors import ConfigurationError
from descend.launch import as_trainer, current_trainer, layout_trainers


@pytest.mark.parametrize(
    ("ranks", "trainers", "procs", "blocks", "of_ranks"),
    [
        (1, None, None, 1, [[0]]),
        (4, None, None, 1, [[0]] * 4),
        (4, 2, None, 2, [[0], [0], [1], [1]]),
        (2, 4, None, 2, [[0, 1], [2, 3]]),
        (4, None, 2, 2, [[0], [0], [1], [1]]),
        (4, 4, 2, 2, [[0, 1], [0, 1], [2, 3], [2, 3]]),
        (6, 3, 2, 3, [[0], [0], [1], [1], [2], [2]]),
    ],
)
def test_blocks_of_ranks_in_order(ranks, trainers, procs, blocks, of_ranks):
    layout = layout_trainers(ranks, trainers, procs, {})
    assert layout.blocks == blocks
    assert [list(layout.of_rank(rank)) for rank in range(ranks)] == of_ranks
    assert [rank for block in range(blocks) for rank in layout.ranks_of_block(block)] == list(range(ranks))
    for trainer in range(layout.trainers):
        first = layout.first_of(trainer)
        assert first == min(rank for rank in range(ranks) if trainer in of_ranks[rank])
        assert first in layout.ranks_of_block(layout.block_of(trainer))


@pytest.mark.parametrize(
    ("ranks", "trainers", "procs", "message"),
    [
        (6, None, 4, "procs_per_trainer=4 does not divide 6 ranks; 1, 2, 3, 6 do"),
        (4, 3, 2, "3 trainers cannot be divided evenly among 2 blocks of 2 ranks each"),
        (4, 0, None, "trainers must be an integer >= 1 and <= 1000000 or None, got 0"),
        (4, None, 1.5, "procs_per_trainer must be an integer >= 1 or None, got 1.5"),
    ],
)
def test_numbers_that_contradict_each_other(ranks, trainers, procs, message):
    with pytest.raises(ConfigurationError, match=message):
        layout_trainers(ranks, trainers, procs, {})


def test_the_environment_stands_behind_the_argument_and_ours_before_lbanns():
    environment = {"DESCEND_PROCS_PER_TRAINER": "2", "LBANN_PROCS_PER_TRAINER": "4"}
    assert layout_trainers(8, None, None, environment).procs_per_trainer == 2
    assert layout_trainers(8, None, 8, environment).procs_per_trainer == 8
    assert layout_trainers(8, None, None, {"LBANN_PROCS_PER_TRAINER": "4"}).procs_per_trainer == 4


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.0"])
def test_a_variable_that_is_no_number_is_named(text):
    with pytest.raises(ConfigurationError, match=f"LBANN_PROCS_PER_TRAINER must be an integer >= 1, got '{text}'"):
        layout_trainers(2, None, None, {"LBANN_PROCS_PER_TRAINER": text})


def test_the_trainer_of_the_moment_is_that_of_the_innermost_block():
    outside = current_trainer()
    assert outside == (0, 1)
    with as_trainer(1, 3):
        with as_trainer(2, 3):
            assert current_trainer() == (2, 3)
        assert current_trainer() == (1, 3)
    assert current_trainer() == outside
