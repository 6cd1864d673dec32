"""Ranks that vote on signs. As a script: the number of steps after which a signal comes, 0 for none."""

from __future__ import annotations

import functools
import os
import signal
import sys

from ranks.cases import data, network
from ranks.start import leave
from torch import nn

import descend

RATE, MOMENTUM = 0.01, 0.9


class Watch(descend.Callback):
    """Keeps the samples of each step, and may send this process a signal."""

    def __init__(self, at: int) -> None:
        self.at, self.samples, self.sent = at, [], 0

    def before_step(self, step):
        x, y = step.batch.fields.values()
        self.samples.append([x.tolist(), y.tolist()])
        if step.step == self.at and descend.distributed.rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def after_step(self, step):
        self.sent = step.run.control._run.strategy.sent_bytes


def vote(signal_at: int, found: dict[str, object]) -> dict[str, object]:
    """Train by votes; what came out is in `found`, also where a signal ends the run."""
    watch = Watch(signal_at)
    found["samples"] = watch.samples
    result = descend.fit(
        network(),
        nn.CrossEntropyLoss(),
        data(23, (1, 20)),
        optimizer=functools.partial(descend.optim.SignSGD, lr=RATE),
        batch_size=7,
        stop=descend.Epochs(2),
        seed=3,
        callbacks=[watch],
        gradient_compression=descend.MajorityVote(MOMENTUM),
        run_dir="run",
        resume=True,
    )
    found["weights"] = {name: tensor.tolist() for name, tensor in result.weights.items()}
    found["sent"] = watch.sent
    return found


def main() -> None:
    found: dict[str, object] = {}
    try:
        vote(int(sys.argv[1]), found)
    finally:
        leave(found)


if __name__ == "__main__":
    descend.main(main)
