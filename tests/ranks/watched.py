"""Runs whose callbacks look at samples and outputs, which has to come out the same on any number of ranks.

As a script: run all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import descend
from descend.callbacks import CheckDataset, ConfusionMatrix, DumpMBIndices, DumpOutputs, GradientNoiseScale, Mixup

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, ONE_LEFT = 22, 13


class Labelled(nn.Module):
    """The labels go through a layer of their own, for those that look at layers."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scores = nn.Sequential(nn.Linear(5, 4), *more, nn.Linear(4, 3))
        self.label = nn.Identity()
        self.double()

    def forward(self, x, one_hot):
        self.label(one_hot)
        return self.scores(x)


def data(samples: int, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, generator=draw, dtype=torch.float64)
    one_hot = torch.eye(3, dtype=torch.float64)[torch.randint(0, 3, (samples,), generator=draw)]
    return x, one_hot, one_hot


def callbacks():
    return [
        CheckDataset(),
        ConfusionMatrix("scores", "label"),
        DumpOutputs("scores label", directory="outputs"),
        DumpMBIndices("ids/"),
        Mixup("", 0.4),
        GradientNoiseScale(every_steps=1),
    ]


def run(folder: str, module: nn.Module | None = None, **settings):
    """The last mini-batch of an epoch has one sample, and so has the validation."""
    return descend.fit(
        module or Labelled(),
        nn.CrossEntropyLoss(),
        data(SAMPLES),
        **{
            "optimizer": descend.SGD(learn_rate=0.1, momentum=0.9),
            "batch_size": 7,
            "micro_batch_size": 1,
            "stop": descend.Epochs(2),
            "seed": 5,
            "targets": 1,
            "valid": data(ONE_LEFT, 1),
            "test": data(1, 2),
            "callbacks": callbacks(),
            "run_dir": folder,
            **settings,
        },
    )


def both(folder: str) -> list[list[dict[str, object]]]:
    """The rows of a run whose batches are cut, and of one whose batch norm all ranks come to together."""
    cut = run(f"{folder}/cut")
    settings = {"micro_batch_size": None, "batch_size": 20, "callbacks": callbacks()[:-1]}
    jointly = run(f"{folder}/jointly", Labelled(nn.BatchNorm1d(4)), **settings)
    return [[{k: v for k, v in row.items() if k != "seconds"} for row in one.history] for one in (cut, jointly)]


def files(folder: Path) -> dict[str, list[list[float]]]:
    """Every file of numbers below a folder."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in (".csv", ".txt") and path.name != "log.txt"]
    return {
        str(path.relative_to(folder)): [[float(n) for n in line.split(",")] for line in path.read_text().splitlines()]
        for path in found
    }


class Drawing(nn.Module):
    """Its forward pass draws by a function; it remembers what it has drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.drawn = nn.Linear(3, 3), []

    def forward(self, x):
        noise = torch.randn_like(x)
        self.drawn += noise.tolist() if self.training else []
        return self.inside(x + noise)


def drawn() -> list[list[float]]:
    """What this rank draws in two steps of ten samples."""
    module = Drawing()
    some = torch.ones(10, 3), torch.zeros(10, dtype=torch.int64)
    descend.fit(
        module,
        nn.CrossEntropyLoss(),
        some,
        optimizer=descend.SGD(learn_rate=0.1),
        batch_size=10,
        stop=descend.Epochs(2),
    )
    return module.drawn


if __name__ == "__main__":
    from ranks.start import leave

    def everything():
        leave({"rows": both("."), "drawn": drawn()})

    descend.main(everything)
