"""Ranks of DiLoCo. As a script: the number of steps after which a signal comes, 0 for none."""

from __future__ import annotations

import functools
import os
import signal
import sys

import torch
from ranks.cases import data, network
from ranks.start import leave
from torch import nn

import descend

RULE = {"steps": 3, "outer_lr": 0.7, "outer_momentum": 0.9}
INNER = functools.partial(torch.optim.Adam, lr=0.05)


class Keep(descend.Callback):
    """Keeps the samples of each step, and may send this process a signal."""

    def __init__(self, at: int) -> None:
        self.at, self.samples = at, []

    def before_step(self, step):
        x, y = step.batch.fields.values()
        self.samples.append([x.tolist(), y.tolist()])
        if step.step == self.at and descend.distributed.rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    keep = Keep(int(sys.argv[1]))
    found = {"samples": keep.samples}
    try:
        result = descend.fit(
            network(),
            nn.CrossEntropyLoss(),
            data(24),
            optimizer=INNER,
            batch_size=8,
            stop=descend.Epochs(3),
            valid=data(12),
            seed=3,
            callbacks=[keep],
            strategy=descend.LocalSGD(**RULE),
            run_dir="run",
            resume=True,
        )
        found["weights"] = {name: tensor.tolist() for name, tensor in result.weights.items()}
        found["rows"] = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    finally:
        leave(found)


if __name__ == "__main__":
    descend.main(main)
