"""A Gluon training loop over torch weights: MXNet's Trainer, its words and its arithmetic.

python examples/from_mxnet.py

The lines marked "as in Gluon" are those of a Gluon script.
"""

from __future__ import annotations

import torch
from torch import nn

import descend


def main(epochs: int = 10) -> float:
    torch.manual_seed(0)
    x = torch.randn(500, 10)
    y = x @ torch.randn(10, 1) + 0.01 * torch.randn(500, 1)
    net = nn.Linear(10, 1)
    batch_size = 50
    schedule = ("FactorScheduler", {"step": 50, "factor": 0.5, "base_lr": 0.1})
    trainer = descend.optim.GluonTrainer(
        net.named_parameters(),
        "nag",  # as in Gluon
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule},
    )
    loss = torch.tensor(float("nan"))
    for epoch in range(epochs):
        for first in range(0, len(x), batch_size):
            net.zero_grad()
            part = slice(first, first + batch_size)
            loss = 0.5 * (net(x[part]) - y[part]).square().sum()  # L2Loss, summed over samples
            loss.backward()
            trainer.step(batch_size)  # as in Gluon: divides by it
        print(f"epoch {epoch}: loss {loss.item() / batch_size:.5f}, learning rate {trainer.learning_rate}")
    return loss.item() / batch_size


if __name__ == "__main__":
    descend.main(main)
