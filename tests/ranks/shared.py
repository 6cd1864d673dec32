"""Small runs whose gradients are summed in shared memory all the same. As a script: WAY, and the names of runs.

shared        as it is
refused       the second rank is given no memory
apart         the second rank is on another host
killed        the second rank is killed within its eighth sum
stopped       it is stopped there
fails         it raises an error there
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from unittest import mock

from ranks.cases import outcome
from ranks.start import leave
from torch import distributed

import descend
from descend.runtime import shared_memory as shared
from descend.runtime.shared_memory import SharedAllReduce
from descend.train.strategies import buckets as reduction

LAST = 8


def fail():
    raise ValueError("in a sum")


ENDS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "fails": fail,
}
seen = Counter()


def counted(name, plain, size):
    def call(first, *args, **kwargs):
        seen[name] += 1
        seen[f"bytes of {name}"] += size(first)
        way = "".join(sys.argv[1:2])
        if way in ENDS and descend.distributed.rank() == 1 and seen["add_up"] == LAST:
            ENDS[way]()
        return plain(first, *args, **kwargs)

    return call


def refused(size):
    return None, f"{size} bytes: there is none"


@contextmanager
def forced(way):
    """Sums of any size go through shared memory, where the ranks have some."""
    with ExitStack() as stack:

        def patch(where, name, value):
            stack.enter_context(mock.patch.object(where, name, value))

        patch(reduction, "LEAST_SHARED_BYTES", 0)
        summed = counted("add_up", reduction.all_reduce_shared, lambda some: some[0].nbytes)
        patch(reduction, "all_reduce_shared", summed)
        patch(distributed, "all_reduce", counted("all_reduce", distributed.all_reduce, lambda tensor: tensor.nbytes))
        if os.environ["RANK"] == "1" and way == "refused":
            patch(shared, "_create", refused)
        if os.environ["RANK"] == "1" and way == "apart":
            patch(shared, "_host", lambda: ["another"])
        patch(SharedAllReduce, "__call__", counted("small sums", SharedAllReduce.__call__, lambda sums: 0))
        yield


def everything():
    with forced(sys.argv[1]):
        leave({**{name: outcome(name) for name in sys.argv[2:]}, "seen": seen})


if __name__ == "__main__":
    descend.main(everything)
