"""Workers that send gradients to a parameter server. As a script: RULE EPOCHS FAULT RANK; that rank goes wrong."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time

import torch
from ranks.start import leave
from torch import nn

import descend

RATE, STRENGTH, SIZE, SAMPLES = 0.3, 2.0, 3, 20
FAULTY_READ = 7 + SAMPLES  # the ranks compare all samples beforehand
RULES = {
    "sgd": functools.partial(descend.optim.SGD, lr=RATE),
    "dcasgd": functools.partial(descend.optim.DCASGD, lr=RATE, lamda=STRENGTH),
}


def data():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64), torch.arange(SAMPLES) % 3


def network(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.Tanh(), nn.Linear(4, 3)).double()


class Samples(torch.utils.data.Dataset):
    """Reading takes rank 2 longer than the others; what rank FAULTY reads at first in training goes wrong."""

    def __init__(self, fault: str, faulty: int) -> None:
        (self.x, self.y), self.fault, self.faulty, self.read = data(), fault, faulty, 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int):
        self.read += 1
        rank = descend.distributed.rank()
        time.sleep(0.003 * (1 + 2 * (rank == 2)))
        if rank == self.faulty and self.read == FAULTY_READ:
            self._go_wrong(i)
        bad = self.fault == "poisoned" and rank == self.faulty and self.read >= FAULTY_READ
        return self.x[i] * (float("nan") if bad else 1.0), self.y[i]

    def _go_wrong(self, i: int) -> None:
        if self.fault == "raises":
            raise ValueError(f"sample {i} is not available")
        if self.fault == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "is suspended":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault == "sleeps":
            time.sleep(1000)
        if self.fault == "is asked to end":
            os.kill(os.getpid(), signal.SIGTERM)


class Server(descend.Callback):
    """Lets the server go wrong after its fifth update."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def after_step(self, step):
        if step.step == 5 and self.fault == "raises":
            raise ValueError("so it is")
        if step.step == 5 and self.fault == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if step.step == 5 and self.fault == "is asked to end":
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    rule, epochs, fault, faulty = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    x, y = data()
    more = [nn.BatchNorm1d(4), nn.Dropout(0.2)] if "LAYERS" in os.environ else []
    result = descend.fit(
        network(*more),
        nn.CrossEntropyLoss(),
        Samples(fault, faulty),
        optimizer=RULES[rule],
        batch_size=SIZE,
        stop=descend.Epochs(epochs),
        valid=(x[:5], y[:5]),
        shuffle="LAYERS" in os.environ,
        seed=3,
        callbacks=[descend.Checkpoint(every_steps=3), *([Server(fault)] if faulty == 0 else [])],
        asynchronous=descend.ParameterServer(),
        run_dir="run",
        resume=True,
    )
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    weights = {name: w.tolist() for name, w in result.weights.items()}
    leave({"weights": weights, "rows": rows, "reason": result.reason, "steps": result.steps})


if __name__ == "__main__":
    descend.main(main)
