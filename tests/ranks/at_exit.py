"""As a script: processes that end right after a collective, in a group that no rank leaves, many times."""

import os
import sys
from pathlib import Path

import torch
from ranks.start import leave
from torch import distributed

import descend.runtime  # noqa: F401  # what its import does at the end is tried

TIMES = 8


def act() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    # One core, and gloo's threads only where no other thread wants it: they are behind when the process ends.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))
        if int(task.name) != os.getpid():
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
    sys.setswitchinterval(100)  # a thread gets Python's lock when another one releases it, and not before
    for _ in range(3):
        distributed.all_reduce(torch.ones(100))


def main() -> None:
    ends = []
    for _ in range(TIMES):
        child = os.fork()
        if child == 0:
            act()
            return
        ends.append(os.waitpid(child, 0)[1])
    leave(ends)


if __name__ == "__main__":
    main()
