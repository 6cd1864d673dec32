"""Workloads on Fashion-MNIST, small enough that a study of some hundred trials takes minutes on two cores.

    residual    196 → 64, three residual blocks with batch norm over groups of 64, head; 38,000 weights
    plain       196-64-64-10 without normalization, so that samples are independent given the weights

Images are averaged over 2 × 2 pixels to 14 × 14; 50,000 train, 10,000 are held out for validation, 10,000 are for test.
The files are those of `apt install dataset-fashion-mnist`; see `descend.zoo.fashion_mnist` for other places.
"""

import functools

import numpy as np
import torch
from torch import Tensor, nn

import descend

GROUP = 64  # samples that batch norm takes statistics over, whatever the batch size


@functools.cache
def rows(role: str) -> tuple[Tensor, Tensor]:
    reader = descend.open_readers(descend.zoo.fashion_mnist(validation_fraction=1 / 6))[role]
    fields = reader.read(np.arange(len(reader)))
    images = torch.as_tensor(fields["samples"])
    pooled = nn.functional.avg_pool2d(images, 2).flatten(1)
    return (pooled - 0.286) / 0.33, torch.as_tensor(fields["labels"]).argmax(1)


class GroupedBatchNorm(nn.BatchNorm1d):
    """Batch norm over groups of 64 samples; the running statistics are means over the groups of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        count = len(x) // GROUP
        if not self.training or count < 1:
            return super().forward(x)
        parts = x[: count * GROUP].view(count, GROUP, -1)
        variance, mean = torch.var_mean(parts, dim=1, correction=0, keepdim=True)
        with torch.no_grad():
            self.running_mean.lerp_(mean.mean(0).flatten(), self.momentum)
            self.running_var.lerp_(variance.mean(0).flatten(), self.momentum)
        y = ((parts - mean) / (variance + self.eps).sqrt()).view(-1, x.shape[1])
        rest = x[count * GROUP :]  # the end of an epoch may leave part of a group: by the statistics of the last one
        y = torch.cat([y, (rest - mean[-1]) / (variance[-1] + self.eps).sqrt()])
        return y * self.weight + self.bias


class Block(nn.Module):
    def __init__(self, width: int, gamma_0: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, width),
            GroupedBatchNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            GroupedBatchNorm(width),
        )
        nn.init.constant_(self.inner[-1].weight, gamma_0)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x + self.inner(x))


def residual(gamma_0: float = 1.0, label_smoothing: float = 0.1) -> descend.study.Task:
    return descend.study.Task(
        model=lambda: nn.Sequential(
            nn.Linear(196, 64), nn.ReLU(), *(Block(64, gamma_0) for _ in range(3)), nn.Linear(64, 10)
        ),
        loss=nn.CrossEntropyLoss(label_smoothing=label_smoothing),
        train=rows("train"),
        validation=rows("validate"),
        test=rows("test"),
    )


def plain(validation_samples: int = 2_500) -> descend.study.Task:
    inputs, targets = rows("validate")
    return descend.study.Task(
        model=lambda: nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.CrossEntropyLoss(),
        train=rows("train"),
        validation=(inputs[:validation_samples], targets[:validation_samples]),
        metrics={},
    )
