"""K-FAC beside SGD on the digits, the same number of updates at batch 256. python examples/kfac.py"""

from __future__ import annotations

import functools
import math

import torch
from torch import nn

import descend


def trained(steps: int, rate: float, **options: object) -> float:
    """The mean loss of the last epoch's evaluation on the test samples."""
    readers = descend.open_readers(descend.zoo.digits())
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    result = descend.fit(
        module,
        "cross_entropy",
        readers["train"],
        test=readers["test"],
        optimizer=functools.partial(torch.optim.SGD, lr=rate, momentum=0.9),
        batch_size=256,
        stop=descend.Steps(steps),
        verbose=False,
        **options,
    )
    return result.history[-1]["objective"]


def main(steps: int = 15) -> tuple[float, float]:
    # LBANN's bound on a step, 0.001, is tight; without it the damping alone limits the step.
    kfac = descend.KFAC(damping_act=0.03, damping_err=0.03, use_pi=True, gradient_bound=math.inf)
    losses = trained(steps, 0.1), trained(steps, 0.02, algorithm=kfac)
    print(f"test loss after {steps} updates: SGD with momentum {losses[0]:.4f}, K-FAC {losses[1]:.4f}")
    return losses


if __name__ == "__main__":
    descend.main(main)
