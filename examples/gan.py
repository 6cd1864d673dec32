"""A GAN of points on a ring: discriminator and generator take turns, two updates to one. python examples/gan.py"""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import descend

RADIUS = 2.0


class Gan(nn.Module):
    """A generator of points (n, 2) from noise, and a discriminator of points."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def draw(self, number: int) -> torch.Tensor:
        return self.generator(torch.randn(number, 4))


def judge(gan: Gan, real: torch.Tensor) -> torch.Tensor:
    scores = torch.cat([gan.discriminator(real), gan.discriminator(gan.draw(len(real)))])
    return bce(scores, torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]))


def deceive(gan: Gan, real: torch.Tensor) -> torch.Tensor:
    scores = gan.discriminator(gan.draw(len(real)))
    return bce(scores, torch.ones_like(scores))


def main(epochs: int = 60) -> float:
    torch.manual_seed(0)
    angles = torch.rand(2000) * 2 * torch.pi
    points = RADIUS * torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(2000, 2)
    gan = Gan()
    adam = functools.partial(torch.optim.Adam, lr=2e-3, betas=(0.5, 0.999))
    result = descend.fit(
        gan,
        [
            descend.Phase("discriminator", judge, weights=["discriminator.*"], updates=2),
            descend.Phase("generator", deceive, weights=["generator.*"]),
        ],
        points,
        optimizer=adam,
        batch_size=100,
        stop=descend.Epochs(epochs),
        callbacks=[descend.ProgressLines(every_epochs=max(1, epochs // 5))],
    )
    with torch.no_grad():
        radius = float(gan.draw(1000).norm(dim=1).mean())
    print(f"{result.reason}: mean radius {radius:.2f}, of the data {RADIUS}")
    return radius


if __name__ == "__main__":
    descend.main(main)
