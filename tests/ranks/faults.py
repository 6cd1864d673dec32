"""A run in which one rank goes wrong in step 5. As a script: FAULT RANK."""

from __future__ import annotations

import os
import signal
import sys
import time

from ranks.cases import data, fit

import descend


class Fault(descend.Callback):
    """Lets the rank that it is on go wrong."""

    def __init__(self, what: str) -> None:
        self.what = what

    def before_step(self, step):
        if step.step != 5:
            return
        if self.what == "raises":
            raise ValueError(f"sample {step.batch.ids[0]} is not to be had")
        if self.what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "is suspended":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.what == "sleeps":
            time.sleep(1000)


def run(what: str, rank: int) -> None:
    here = descend.distributed.rank() == rank
    some = data(40)
    batches = [tuple(part[i : i + 5] for part in some) for i in range(0, 40, 5)]
    if here and what == "has fewer batches":
        batches = batches[:4]
    feed = (lambda: iter(batches)) if what == "has fewer batches" else batches
    callbacks = [descend.Checkpoint(every_steps=2), *([Fault(what)] if here else [])]
    fit(some=feed, batch_size=5, stop=descend.Epochs(2), callbacks=callbacks, run_dir="run", shuffle=False)


if __name__ == "__main__":
    descend.main(lambda: run(sys.argv[1], int(sys.argv[2])))
