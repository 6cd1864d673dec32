"""A run from one Parquet file whose samples come from processes, one of which goes wrong. As a script: FAULT RANK."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import descend

SIGNALS = {"is killed": signal.SIGKILL, "is suspended": signal.SIGSTOP}


class Fault(descend.Callback):
    """Notes the processes of each rank, and sends a signal to one of them in step 5."""

    def __init__(self, what: str, rank: int) -> None:
        self.what, self.rank = what, rank

    def before_step(self, step):
        rank = descend.distributed.rank()
        processes = [process.pid for process in multiprocessing.active_children()]
        if step.step == 4:
            Path(f"processes{rank}").write_text(" ".join(map(str, [os.getpid(), *processes])))
        if step.step == 5 and rank == self.rank:
            os.kill(os.getpid() if self.what == "rank is killed" else processes[0], SIGNALS.get(self.what, 9))


def run(what: str, rank: int) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1), nn.Flatten(0))
    descend.fit(
        module,
        "mse",
        "table.parquet",
        targets=["y"],
        optimizer=functools.partial(torch.optim.SGD, lr=0.01),
        batch_size=8,
        stop=descend.Epochs(20),
        workers=2,
        timeout_seconds=4.0,
        callbacks=[Fault(what, rank)],
        run_dir="run",
    )


if __name__ == "__main__":
    descend.main(lambda: run(sys.argv[1], int(sys.argv[2])))
