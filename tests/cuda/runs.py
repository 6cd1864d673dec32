"""A small network, samples, and runs of `fit` on a device, for the checks."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import descend
import descend.optim

DEVICES = ("cpu", "cuda")
ADAMW = functools.partial(descend.optim.AdamW, lr=1e-3)


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)]
    return nn.Sequential(*layers).to(device)


def samples(count: int = 512) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 8, 8, generator=draw), torch.randint(0, 10, (count,), generator=draw)


def fitted(device: str, steps: int = 20, **options: Any) -> descend.Result:
    given = {"optimizer": ADAMW, "batch_size": 32, "verbose": False, **options}
    return descend.fit(network(device), "cross_entropy", samples(), stop=descend.Steps(steps), **given)


def weights(result: descend.Result) -> list[Tensor]:
    return [p.detach().cpu() for p in (*result.module.parameters(), *result.module.buffers())]
