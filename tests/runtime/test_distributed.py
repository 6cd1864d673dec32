"""A mesh of ranks: rows are trainers, columns the ranks of one."""

import pytest
from ranks.start import start

import descend
from descend.errors import ConfigurationError

# Rank r brings 10 to the power of r, so the digits of a sum are the ranks that took part, the last one first.
ROWS = {0: 11, 1: 11, 2: 1100, 3: 1100}
COLUMNS = {0: 101, 1: 1010, 2: 101, 3: 1010}


def test_without_a_group_there_is_no_mesh():
    with pytest.raises(ConfigurationError, match="no process group"):
        descend.distributed.mesh()


@pytest.mark.slow
def test_rows_and_columns_of_four_ranks(tmp_path):
    ended = start(4, "meshed.py", tmp_path)
    assert [rank.code for rank in ended] == [0] * 4, "\n".join(rank.err for rank in ended)
    for number, rank in enumerate(ended):
        assert rank.left["data, 2"] == ROWS[number]
        assert rank.left["trainer, 2"] == COLUMNS[number]
        assert rank.left["data, 1"] == rank.left["trainer, None"] == 10**number
        assert rank.left["trainer, 1"] == rank.left["data, None"] == 1111
