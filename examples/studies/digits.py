"""The workload of `digits.toml`: a small network on the handwritten digits that ship with the package."""

import numpy as np
import torch
from torch import nn

import descend


def rows(role: str) -> tuple[torch.Tensor, torch.Tensor]:
    reader = descend.open_readers(descend.zoo.digits())[role]
    fields = reader.read(np.arange(len(reader)))
    return torch.as_tensor(fields["samples"]).flatten(1), torch.as_tensor(fields["labels"]).argmax(1)


def task(width: int = 32) -> descend.study.Task:
    return descend.study.Task(
        model=lambda: nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)),
        loss=nn.CrossEntropyLoss(),
        train=rows("train"),
        validation=rows("validate"),
        test=rows("test"),
    )
