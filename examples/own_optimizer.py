"""An update rule of one's own, in a loop of torch, in `fit`, and compared with AdamW.

python examples/own_optimizer.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import descend
from descend.optim import Rule


class TwoMeansState(NamedTuple):
    fast: Tensor  # running mean of g over about 5 updates
    slow: Tensor  # and over about 100


@descend.optim.register
@dataclass(frozen=True)
class TwoMeans(Rule):
    """d = fast + κ slow: a short and a long running mean of the gradient."""

    kappa: float = 2.0

    def init(self, p: Tensor) -> TwoMeansState:
        return TwoMeansState(torch.zeros_like(p), torch.zeros_like(p))

    def direction(self, g: Tensor, s: TwoMeansState) -> tuple[Tensor, TwoMeansState]:
        fast = 0.8 * s.fast + 0.2 * g
        slow = 0.99 * s.slow + 0.01 * g
        return fast + self.kappa * slow, TwoMeansState(fast, slow)


def main(steps: int = 100, trials: int = 4, seeds: int = 6) -> str:
    model = nn.Linear(4, 2)
    optimizer = descend.optim.create("twomeans", model.named_parameters(), lr=0.1, weight_decay=0.01)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 8, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    result = descend.compare(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        nn.CrossEntropyLoss(),
        {"train": (x[:500], y[:500]), "validation": (x[500:], y[500:])},
        arms={
            "TwoMeans": descend.study.Arm(descend.optim.optimizer_class(TwoMeans), {"lr": descend.study.log(1e-2, 10)}),
            "AdamW": descend.study.Arm("AdamW", {"lr": descend.study.log(1e-4, 0.1)}),
        },
        batch_size=50,
        steps=steps,
        trials=trials,
        searches=2,
        seeds=seeds,
    )
    print(result.table)
    print(result.verdict)
    return str(result.verdict)


if __name__ == "__main__":
    descend.main(main)
