"""Images at a large batch: LAMB with a warm-up, no decay or scaling of biases and norms, batch norm in groups.

python examples/large_batch.py                  digits at batch 512, 10 epochs of 3 updates: seconds
python examples/large_batch.py fashion-mnist    clothes at batch 4,096, 10 epochs of 15 updates: minutes on two cores
"""

from __future__ import annotations

import functools
import sys

import torch
from torch import nn

import descend


def network(size: int) -> nn.Sequential:
    """Two convolutions with batch norm, for images of `size` by `size` pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def main(data: str = "digits", epochs: int = 10) -> descend.Result:
    large = data == "fashion-mnist"
    batch_size = 4096 if large else 512
    readers = descend.open_readers(descend.zoo.fashion_mnist() if large else descend.zoo.digits())
    train = readers["train"]
    torch.manual_seed(0)
    module = network(train.fields["samples"].shape[-1])
    steps = epochs * -(-len(train) // batch_size)
    schedule = descend.optim.schedules.PiecewisePolynomial(
        2e-2, warmup_steps=max(1, steps // 5), steps=steps, initial=2e-3
    )
    groups = descend.optim.groups.split(module, undecayed=["bias", "norm"], unscaled=["bias", "norm"])
    print(descend.optim.explain(descend.optim.LAMB(groups, lr=schedule, weight_decay=0.02), steps))
    result = descend.fit(
        module,
        nn.CrossEntropyLoss(),
        train,
        valid=readers.get("validate"),
        test=readers["test"],
        metrics=["accuracy"],
        optimizer=lambda params: descend.optim.LAMB(groups, lr=schedule, weight_decay=0.02),
        batch_size=batch_size,
        micro_batch_size=min(1024, batch_size),  # what fits; the update is that of the whole batch
        batch_norm_group_size=64,
        stop=descend.Epochs(epochs),
    )
    print(f"{result.reason}; test accuracy {result.history[-1]['accuracy']:.1%}")
    return result


if __name__ == "__main__":
    descend.main(functools.partial(main, *sys.argv[1:2]))
