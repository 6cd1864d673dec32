"""Two ranks on gloo train as one process does, for every rule: DDP, and FSDP2, whose weights are DTensors."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from descend.errors import RuleError
from descend.optim import Optimizer
from descend.optim.rules import ALL_RULES, SOAP, Rule

STEPS = 4
# Each rank draws noise of its own for its part. SOAP's first bases are of one gradient, which is not of full rank:
# rounding decides the rest of them.
FIXED = [rule for rule in ALL_RULES if "noise" not in rule.needs and not isinstance(rule, SOAP)]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def train(model: nn.Module, rule: Rule, samples: slice, divisor: int) -> None:
    optimizer = Optimizer(model.named_parameters(), rule, lr=0.01, weight_decay=0.02)
    random = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(8, 4, generator=random, dtype=torch.float64)[samples]
        optimizer.zero_grad()
        (model(x).square().sum() / divisor).backward()
        optimizer.step()


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def rank(number: int, at: int, kind: str, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(at), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=number, world_size=2)
    for i, rule in enumerate(FIXED):
        found: list[Any] | str
        try:
            found = trained(rule, kind, slice(4 * number, 4 * number + 4))
        except RuleError as error:
            found = str(error)
        if number == 0:
            results.put((i, found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def trained(rule: Rule, kind: str, samples: slice) -> list[Any]:
    """The whole weights after training on this rank's part of each batch."""
    model: Any = net()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    train(model, rule, samples, 4)
    whole = [p.full_tensor() if kind == "fsdp2" else p for p in model.parameters()]
    return [p.detach().numpy() for p in whole]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_every_rule_on_two_ranks_is_the_rule_on_one(kind: str) -> None:
    results = mp.get_context("spawn").Queue()
    ranks = mp.spawn(rank, args=(port(), kind, results), nprocs=2, join=False)
    assert ranks is not None
    seen = dict(results.get(timeout=120) for _ in FIXED)
    ranks.join()
    for i, rule in enumerate(FIXED):
        if kind == "fsdp2" and rule.whole_tensor:
            assert "is distributed over ranks" in seen[i], rule
            continue
        model = net()
        train(model, rule, slice(None), 8)
        assert not isinstance(seen[i], str), (rule, seen[i])
        for p, found in zip(model.parameters(), seen[i], strict=True):
            torch.testing.assert_close(torch.from_numpy(found), p.detach(), rtol=1e-9, atol=1e-11, msg=repr(rule))
