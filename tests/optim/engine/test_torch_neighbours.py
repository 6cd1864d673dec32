"""Loops in which torch does more than call backward: compiled loops, DDP, FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks.called import on_ranks
from torch import nn

import descend.optim

if TYPE_CHECKING:
    from pathlib import Path


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_a_compiled_loop_is_not_broken(runner: str) -> None:
    plain, compiled = net(), net()
    x = torch.randn(8, 4)

    def loop(model: nn.Module) -> Any:
        optimizer = descend.optim.Adam(model.parameters(), runner=runner)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return step

    ours, theirs = loop(plain), torch.compile(loop(compiled), backend="aot_eager")
    for _ in range(4):
        torch.testing.assert_close(ours(), theirs())


@pytest.mark.slow
def test_fullgraph_compilation_names_the_reason_why_the_step_is_not_in_the_graph() -> None:
    model = net()
    optimizer = descend.optim.Adam(model.parameters())
    with pytest.raises(Exception, match="descend's optimizers bring compiled kernels of their own; leave the step out"):
        torch.compile(optimizer.step, backend="eager", fullgraph=True)()


def _rank(rank: int, kind: str, name: str, runner: str) -> list[Any]:
    model: Any = net()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    optimizer = descend.optim.create(name, model.named_parameters(), lr=1e-2, runner=runner)
    random = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(8, 4, generator=random)[4 * rank : 4 * rank + 4]
        optimizer.zero_grad()
        (model(x).square().sum() / 4).backward()
        optimizer.step()
    whole = [p.full_tensor() if kind == "fsdp2" else p for p in model.parameters()]
    return [p.detach().numpy() for p in whole]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "runner"),
    [
        ("ddp", "adam", "blocks"),
        ("ddp", "lamb", "plain"),
        ("fsdp2", "adam", "blocks"),
        ("fsdp2", "lamb", "plain"),
        ("fsdp2", "lars", "blocks"),
    ],
)
def test_ranks_train_as_one_process_does(kind: str, name: str, runner: str, tmp_path: Path) -> None:
    model = net()
    optimizer = descend.optim.create(name, model.named_parameters(), lr=1e-2, runner="plain")
    random = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(8, 4, generator=random)
        optimizer.zero_grad()
        (model(x).square().sum() / 8).backward()
        optimizer.step()
    seen, _ = on_ranks(2, _rank, tmp_path, kind, name, runner)
    for p, found in zip(model.parameters(), seen, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), p.detach(), rtol=1e-5, atol=1e-6)
