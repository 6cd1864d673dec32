"""A tournament in float64, played on one process or on ranks. As a script: STRATEGY EPOCHS ROUNDS, then settings."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from ranks.cases import data, network
from ranks.start import leave
from torch import nn

import descend

MUTATION = descend.MutationStrategy("perturb_hyperparameters", factor=1.5, lowest=0.05, highest=0.12)
WAYS = {
    "sendrecv": {"strategy": "sendrecv_weights", "exchange_hyperparameters": True},
    "binary": {"strategy": "checkpoint_binary"},
    "file": {"strategy": "checkpoint_file", "checkpoint_dir": "travelling"},
}


def strategy(name: str):
    if name == "truncation":
        return descend.TruncationSelectionExchange({"objective": 0}, 1, MUTATION)
    if name == "evolution":
        return descend.RegularizedEvolution("objective", 0, MUTATION, 2)
    return descend.RandomPairwiseExchange({"objective": 0}, descend.ExchangeStrategy(**WAYS[name]), MUTATION)


class Watch(descend.Callback):
    """Sends this process a signal, sleeps or breaks in a step of one trainer; or in one of its tournaments."""

    def __init__(self, what: str = "", trainer: int = 0, at: int = 0, seconds: float = 0.0) -> None:
        self.what, self.trainer, self.at, self.seconds = what, trainer, at, seconds
        self.tournaments = 0

    def before_step(self, step):
        if descend.distributed.trainer() != self.trainer:
            return
        if self.what == "slow":
            time.sleep(self.seconds)
        if step.step == self.at and self.what == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if step.step == self.at and self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if step.step == self.at and self.what == "hang":
            time.sleep(1000)

    def before_evaluation(self, view):
        if descend.distributed.trainer() != self.trainer or view.mode is not descend.train.Mode.TOURNAMENT:
            return
        self.tournaments += 1
        if self.tournaments == self.at and self.what == "signal in a tournament":
            os.kill(os.getpid(), signal.SIGTERM)


def optimizer(named):
    """Each trainer has a rate of its own; that of trainer 2 is the only one that gets anywhere soon."""
    rate = 0.1 if descend.distributed.trainer() == 2 else 1e-4
    return torch.optim.SGD(named, lr=rate, momentum=0.9)


def play(name="truncation", epochs=1, rounds=2, *, run_dir="run", callbacks=(), **settings):
    algorithm = descend.LTFB(metalearning=strategy(name), metalearning_steps=rounds)
    settings = {"optimizer": optimizer, "algorithm": algorithm, **settings}
    return descend.fit(
        network(),
        nn.CrossEntropyLoss(),
        data(23, (1, 20)),
        tournament=data(9, (3,), 2),
        test=data(5, (), 4),
        batch_size=5,
        stop=descend.Epochs(epochs),
        seed=3,
        run_dir=run_dir,
        callbacks=callbacks,
        **settings,
    )


def outcome(result):
    return {
        one.trainer: {
            "weights": {key: value.tolist() for key, value in one.weights.items()},
            "rows": [{key: value for key, value in row.items() if key != "seconds"} for row in one.history],
            "reason": one.reason,
        }
        for one in result.trainers
    }


if __name__ == "__main__":
    what, at = (sys.argv[5], int(sys.argv[6])) if len(sys.argv) > 5 else ("", 0)
    watch = Watch(what, 1, at, 1.1)

    def main() -> None:
        result = play(
            sys.argv[1],
            int(sys.argv[2]),
            int(sys.argv[3]),
            procs_per_trainer=int(sys.argv[4]),
            resume=True,
            callbacks=[watch, descend.Checkpoint(every_steps=3)],
        )
        leave(outcome(result))

    descend.main(main)
