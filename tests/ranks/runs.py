"""A run with a directory, which a signal on a rank may end. As a script: EPOCHS STEP RANK, both last for a signal."""

from __future__ import annotations

import os
import signal
import sys

from ranks.cases import data, fit
from ranks.start import leave

import descend

DIRECTORY = "run"


class Watch(descend.Callback):
    """Keeps the numbers of the samples of each step, and sends this rank a signal in one of them."""

    def __init__(self, signalled: int | None = None) -> None:
        self.signalled, self.ids = signalled, {}

    def before_step(self, step):
        self.ids[str(step.step)] = step.batch.ids.tolist()
        if step.step == self.signalled:
            os.kill(os.getpid(), signal.SIGTERM)


def run(epochs: int, signalled: int | None = None, rank: int = 0, run_dir: str = DIRECTORY) -> dict[str, object]:
    watch = Watch(signalled if descend.distributed.rank() == rank else None)
    found: dict[str, object] = {"ids": watch.ids}
    try:
        result = fit(
            some=data(23, (1, 20)),
            batch_size=5,
            valid=data(7, (3,), 2),
            metrics=["accuracy"],
            stop=descend.Epochs(epochs),
            callbacks=[watch],
            run_dir=run_dir,
            resume=True,
            shard_optimizer="SHARD" in os.environ,
            optimizer=descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8),
        )
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
        found |= {"rows": rows, "weights": {name: value.tolist() for name, value in result.weights.items()}}
        found["times"] = [row["seconds"] for row in result.history]
        return found
    finally:
        if "LEFT" in os.environ:
            leave(found)


if __name__ == "__main__":
    descend.main(lambda: run(*map(int, sys.argv[1:])))
