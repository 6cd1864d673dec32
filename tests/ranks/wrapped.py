"""Modules that `fully_shard` has sharded, in runs that have to come out as those of whole ones. As a script: NAMES."""

from __future__ import annotations

import functools
import os
import sys
import warnings

import torch
from ranks.cases import ADAM, data, network
from ranks.start import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import descend

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def cut(module: nn.Module, *shape: int) -> nn.Module:
    """The module, each layer with weights sharded where there are ranks."""
    if "WORLD_SIZE" not in os.environ:
        return module
    ranks = int(os.environ["WORLD_SIZE"])
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    names = ("copies", "parts") if len(shape) == 2 else None
    mesh = init_device_mesh("cpu", shape or (ranks,), mesh_dim_names=names)
    for part in module.children():
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def fit(module=None, some=None, **settings):
    given = {"optimizer": SGD, "batch_size": 10, "stop": descend.Epochs(3), "seed": 3, **settings}
    loss = given.pop("loss", nn.CrossEntropyLoss())
    return descend.fit(cut(module or network()), loss, some or data(), **given)


def normed():
    torch.manual_seed(6)
    layers = (nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    return nn.Sequential(*layers).double()


def in_two_dimensions():
    """Sharded among two ranks, with a copy on two others."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return descend.fit(
        cut(network(), ranks // 2, 2),
        nn.CrossEntropyLoss(),
        data(),
        optimizer=ADAM,
        batch_size=7,
        stop=descend.Epochs(3),
        clip_global_norm=0.1,
        clip_norm=0.2,
    )


class Partly(nn.Module):
    """Only one part of it is sharded; the rest is whole on every rank."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = network(), nn.Linear(3, 3).double()
        if "WORLD_SIZE" in os.environ:
            cut(self.inside)

    def forward(self, x):
        return self.head(self.inside(x))


def partly():
    torch.manual_seed(4)
    return descend.fit(
        Partly(),
        nn.CrossEntropyLoss(),
        data(),
        optimizer=ADAM,
        batch_size=7,
        stop=descend.Epochs(3),
        clip_global_norm=0.1,
    )


NAN = (data()[0].index_fill(0, torch.tensor([4]), float("nan")), data()[1])
CASES = {
    "one batch": fit,
    "ignored on one rank": lambda: fit(some=data(ignored=(0, 1, 2, 3, 4)), shuffle=False),
    "partial batch": lambda: fit(batch_size=4, metrics=["accuracy"]),
    "fewer samples than ranks": lambda: fit(batch_size=1, metrics=["accuracy"], stop=descend.Epochs(1)),
    "clipping, Adam and decay": lambda: fit(batch_size=7, clip_global_norm=0.1, optimizer=ADAM),
    "clipping each": lambda: fit(clip_value=0.01, clip_norm=0.02, batch_size=7),
    "torch's AdamW": lambda: fit(batch_size=7, optimizer=functools.partial(torch.optim.AdamW, lr=0.01)),
    "LAMB": lambda: fit(optimizer=functools.partial(descend.optim.LAMB, lr=0.01, weight_decay=0.1), batch_size=7),
    "micro-batches": lambda: fit(micro_batch_size=2, batch_size=7),
    "validation": lambda: fit(
        some=data(12), batch_size=5, valid=data(21, ignored=(2, 20), seed=4), test=data(3, (), 5), metrics=["accuracy"]
    ),
    "dropout": lambda: fit(network(nn.Dropout(0.4)), batch_size=7),
    "batch norm": lambda: fit(normed(), data(24), batch_size=12, batch_norm_group_size=4, micro_batch_size=4),
    "batch norm over the whole mini-batch": lambda: fit(normed(), data(22), batch_size=12),
    "skipped": lambda: fit(some=NAN, batch_size=3, on_nonfinite="skip"),
    "averaged weights": lambda: fit(
        valid=data(21, seed=4), callbacks=[descend.EMA(0.7), descend.EMA(0.3)], batch_size=7
    ),
    "partly": partly,
}
COPIES = {"in two dimensions": in_two_dimensions}


def outcome(name: str) -> dict[str, object]:
    """What a test compares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = {**CASES, **COPIES}[name]()
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
    weights = {key: value.tolist() for key, value in result.weights.items()}
    return {"weights": weights, "history": rows, "reason": result.reason, "steps": result.steps}


if __name__ == "__main__":
    descend.main(lambda: leave({name: outcome(name) for name in sys.argv[1:]}))
