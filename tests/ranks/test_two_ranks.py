"""What two ranks do in the tests of every run, from one start of them: exact batches, sums, votes, shared memory, FSDP.

The same properties on other numbers of ranks, and on more cases, are in the files beside this one, marked slow.
"""

import platform
import sys

from ranks import cases, wrapped
from ranks.start import start
from ranks.test_exactness import compare
from ranks.test_sums import check_steps
from ranks.test_vote import check_votes
from ranks.two_ranks import EXACT, FSDP, SHARED

from descend.launch import cores
from descend.runtime.shared_memory import ORDERED


def test_two_ranks_give_what_one_gives(tmp_path):
    ended = start(2, "two_ranks.py", tmp_path, fresh=True)
    assert [rank.code for rank in ended] == [0, 0], "\n".join(rank.err for rank in ended)
    left = [rank.left for rank in ended]
    compare([found["exact"] for found in left], EXACT, cases.outcome)
    check_steps([found["sums"] for found in left])
    check_votes([found["vote"] for found in left])
    compare([found["shared"] for found in left], SHARED, cases.outcome)
    compare([found["fsdp"] for found in left], FSDP, wrapped.outcome)
    if sys.platform == "linux":  # files without a name are Linux's
        assert all(found["seen"]["add_up"] for found in left)
        spins = cores() >= 2 and platform.machine() in ORDERED
        assert [bool(found["seen"].get("small sums")) for found in left] == [spins] * 2
