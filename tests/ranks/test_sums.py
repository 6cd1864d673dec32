"""What a step of several ranks does beside its passes; that it comes to the same is a matter of test_exactness.py.

The steps are those of test_two_ranks.py, which starts the ranks.
"""

import platform
import sys

from ranks.sums import SHARED

from descend.launch import cores
from descend.runtime.shared_memory import ORDERED

STEPS = 5
WEIGHTS = 4


def check_steps(ranks):
    """Collectives of each step but the first, and divisions of gradients, on each rank."""
    # Four small weights are one bucket. The meeting is waited for at once, the gradients after it.
    expected = {"waited for": 1, "all_reduce": 2, "all_gather": 0, "broadcast": 0, SHARED: 0}
    assert [left["all count"]["steps"] for left in ranks] == [[expected] * (STEPS - 1)] * 2
    if sys.platform == "linux":  # files without a name are Linux's: large gradients are summed between two meetings
        spins = cores() >= 2 and platform.machine() in ORDERED
        expected |= {SHARED: 2, "waited for": 0, "all_reduce": 0} if spins else {"waited for": 2}
        assert [left["large weights"]["steps"] for left in ranks] == [[expected] * (STEPS - 1)] * 2
    # Mini-batches have 4 samples. In one of the five a label does not count, so its gradients are divided by 3 / 4.
    assert [left["all count"]["divisions"] for left in ranks] == [0, 0]
    assert [left["one is ignored"]["divisions"] for left in ranks] == [WEIGHTS, WEIGHTS]
