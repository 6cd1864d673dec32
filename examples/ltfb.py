"""A tournament of eight trainers on the digits: better models replace worse ones.

python examples/ltfb.py [DIRECTORY]
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace

import torch
from torch import nn

import descend


def main(run_dir: str | None = None, trainers: int = 8, rounds: int = 5) -> list[float]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = descend.Model.from_torch(module, loss="cross_entropy", metrics=["accuracy"])
    direction = descend.RandomPairwiseExchange.MetricStrategy.HIGHER_IS_BETTER
    algorithm = descend.LTFB(
        local_algo=descend.BatchedIterativeOptimizer(epoch_count=1),
        metalearning=descend.RandomPairwiseExchange({"accuracy": direction}),
        metalearning_steps=rounds,
    )
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1, training_algo=algorithm)
    train, *others = descend.zoo.digits().reader
    train = replace(train, tournament_fraction=0.1)  # these samples judge the models
    readers = descend.DataReader([train, *others])
    result = descend.run(trainer, model, readers, descend.SGD(learn_rate=0.1), run_dir, trainers=trainers)
    accuracies = [one.history[-1]["accuracy"] for one in result.trainers]
    print(f"test accuracies of {trainers} trainers: {', '.join(f'{accuracy:.3f}' for accuracy in accuracies)}")
    return accuracies


if __name__ == "__main__":
    descend.main(functools.partial(main, *sys.argv[1:2]))
