"""A run with a directory whose module is sharded among ranks. As a script: EPOCHS."""

from __future__ import annotations

import os
import sys

from ranks.cases import data
from ranks.start import leave
from ranks.wrapped import cut, normed
from torch import nn

import descend


def run(epochs: int, run_dir: str = "run") -> dict[str, object]:
    result = descend.fit(
        cut(normed()),
        nn.CrossEntropyLoss(),
        data(23, (1, 20)),
        optimizer=descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8),
        batch_size=6,
        batch_norm_group_size=6,
        valid=data(7, (3,), 2),
        metrics=["accuracy"],
        stop=descend.Epochs(epochs),
        run_dir=run_dir,
        resume=True,
    )
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
    found: dict[str, object] = {
        "rows": rows,
        "weights": {name: value.tolist() for name, value in result.weights.items()},
    }
    if "LEFT" in os.environ:
        leave(found)
    return found


if __name__ == "__main__":
    descend.main(lambda: run(int(sys.argv[1])))
