"""Two ranks on gloo train as one process does, for every rule: DDP, and FSDP2, whose weights are DTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks.called import on_ranks
from torch import nn

import descend.optim
from descend.errors import RuleError
from descend.optim import Optimizer
from descend.optim.rules import ALL_RULES, SOAP, Rule

if TYPE_CHECKING:
    from pathlib import Path

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


def rank(number: int, kind: str) -> list[list[Any] | str]:
    seen: list[list[Any] | str] = []
    for rule in FIXED:
        try:
            seen.append(trained(rule, kind, slice(4 * number, 4 * number + 4)))
        except RuleError as error:
            seen.append(str(error))
    return seen


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
def test_every_rule_on_two_ranks_is_the_rule_on_one(kind: str, tmp_path: Path) -> None:
    seen, _ = on_ranks(2, rank, tmp_path, kind)
    for i, rule in enumerate(FIXED):
        if kind == "fsdp2" and rule.whole_tensor:
            assert "is distributed over ranks" in seen[i], rule
            continue
        model = net()
        train(model, rule, slice(None), 8)
        assert not isinstance(seen[i], str), (rule, seen[i])
        for p, found in zip(model.parameters(), seen[i], strict=True):
            torch.testing.assert_close(torch.from_numpy(found), p.detach(), rtol=1e-9, atol=1e-11, msg=repr(rule))


SHARED = ["fsdp1", "fsdp1_original", "zero", "zero_buckets", "zero_plain"]


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))


def sharing(kind: str, library: str) -> tuple[nn.Module, Any]:
    """A model whose parameters are views of memory that a wrapper holds, and an optimizer over them."""
    adam: Any = torch.optim.AdamW if library == "torch" else descend.optim.AdamW
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        model: Any = FullyShardedDataParallel(
            small(), use_orig_params=kind == "fsdp1_original", device_id=torch.device("cpu")
        )
        return model, adam(model.parameters(), lr=1e-2, weight_decay=0.01)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(small())
    more: Any = {"runner": "plain"} if kind == "zero_plain" and library != "torch" else {}
    buckets = kind == "zero_buckets"
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), adam, parameters_as_bucket_view=buckets, lr=1e-2, weight_decay=0.01, **more
    )
    return model, optimizer


def losses(kind: str, library: str, number: int) -> list[float]:
    """Of six steps on this rank's part of each batch, and a number of the weights that it has then."""
    model, optimizer = sharing(kind, library)
    random = torch.Generator().manual_seed(1)
    found: list[float] = []
    for _ in range(6):
        x = torch.randn(8, 4, generator=random)[4 * number : 4 * number + 4]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    weight = torch.tensor(1.0)
    return [*found, model(weight.expand(1, 4)).sum().item()]


def sharing_rank(number: int) -> dict[str, tuple[list[float], list[float]]]:
    return {kind: (losses(kind, "descend", number), losses(kind, "torch", number)) for kind in SHARED}


@pytest.mark.slow
def test_wrappers_that_hold_the_parameters_memory_see_every_update(tmp_path: Path) -> None:
    """FSDP1 and ZeroRedundancyOptimizer with and without views of one buffer, beside torch's AdamW."""
    seen = on_ranks(2, sharing_rank, tmp_path)
    for kind in SHARED:
        for ours, theirs in (of_rank[kind] for of_rank in seen):
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6), kind
        assert seen[0][kind][0][-1] == seen[1][kind][0][-1], kind  # the ranks agree to the bit
