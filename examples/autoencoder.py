"""An autoencoder of handwritten digits: 64 pixels through 8 numbers and back. python examples/autoencoder.py"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

import descend


def main(epochs: int = 30) -> float:
    readers = descend.open_readers(descend.zoo.digits())
    images = {
        role: torch.from_numpy(readers[role].read(np.arange(len(readers[role])))["samples"]).float().flatten(1)
        for role in ("train", "test")
    }
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)),  # to the code
        *(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)),  # and back
    )
    result = descend.fit(
        module,
        "mse",
        images["train"],  # a single tensor is its own target
        test=images["test"],
        optimizer=functools.partial(descend.optim.AdamW, lr=3e-3),
        batch_size=64,
        stop=descend.Epochs(epochs),
        callbacks=[descend.EMA(decay=0.98)],
    )
    error = result.history[-1]["objective"]
    print(f"mean squared error {error:.4f}, of the mean image {images['test'].var(0, correction=0).mean():.4f}")
    drawn = descend.predict(module, images["test"][:1])[0].reshape(8, 8)
    for row in drawn:
        print("".join(" .:-=+*#%@"[int(min(max(value, 0), 0.999) * 10)] for value in row / images["test"].max()))
    return error


if __name__ == "__main__":
    descend.main(main)
