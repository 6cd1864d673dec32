"""A run in which one rank goes wrong in step 5. As a script: FAULT RANK, and whose group of ranks it is:

ours       made by the run
theirs     made by the user
cut        the same, and the module is sharded among them
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from ranks.cases import data, fit, network

import descend


class Fault(descend.Callback):
    """Lets the rank that it is on go wrong."""

    def __init__(self, what: str) -> None:
        self.what = what

    def before_step(self, step):
        if step.step != 5:
            return
        if self.what == "raises":
            raise ValueError(f"sample {step.batch.ids[0]} is not available")
        if self.what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "is suspended":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.what == "sleeps":
            time.sleep(1000)
        if self.what == "drifts":
            step.module[0].weight.data += 0.5
        if self.what == "renames":
            Path("run").rename("away")
        if self.what == "exchanges":
            Path("run").rename("away")
            Path("run").mkdir()
            Path("run/mine").write_text("mine")
        if self.what == "hangs in a save":  # as a write to a file system that no longer answers
            os.fsync = lambda file: time.sleep(1000)


class AtTheEnd(descend.Callback):
    """Never comes to the end of the run."""

    def after_run(self, *given):
        time.sleep(1000)


def sleeping():
    """A hook of a module whose backward pass sleeps in the fifth step."""
    calls = iter([None] * 4)

    def pause(gradient):
        if next(calls, gradient) is gradient:
            time.sleep(1000)

    return lambda module, given, output: output.register_hook(pause) and None


def short_of_memory():
    """A hook of a module that has no memory left when it is called for the fifth time."""
    calls = iter([None] * 4)

    def hook(module, given):
        if next(calls, module) is module:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def run(what: str, rank: int, group: str = "ours") -> None:
    if group != "ours":
        torch.distributed.init_process_group("gloo")
    module = network()
    if group == "cut":
        from torch.distributed.fsdp import fully_shard  # takes seconds to import

        fully_shard(module)
    here = descend.distributed.rank() == rank
    if here and what == "has no memory":
        module.register_forward_pre_hook(short_of_memory())
    if here and what == "sleeps in a backward pass":
        module[0].register_forward_hook(sleeping())
    some = data(40)
    batches = [tuple(part[i : i + 5] for part in some) for i in range(0, 40, 5)]
    if here and what == "has fewer batches":
        batches = batches[:4]
    feed = (lambda: iter(batches)) if what == "has fewer batches" else batches
    callbacks = [
        descend.Checkpoint(every_steps=2),
        *([AtTheEnd() if what == "sleeps at the end" else Fault(what)] if here else []),
    ]
    fit(module, feed, batch_size=5, stop=descend.Epochs(2), callbacks=callbacks, run_dir="run", shuffle=False)


if __name__ == "__main__":
    descend.main(lambda: run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
