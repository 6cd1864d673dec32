"""Every runner agrees with the plain one to rounding, for every rule, over every kind of tensor."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from descend.optim.engine import kernels, parts
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, Adam, Rule

Make = Callable[[torch.Generator, torch.dtype], Tensor]


def drawn(*shape: int) -> Make:
    return lambda random, dtype: torch.randn(shape, generator=random).to(dtype)


TENSORS: dict[str, Make] = {
    "scalar": drawn(),
    "one": drawn(1),
    "empty": drawn(0),
    "matrix": drawn(4, 3),
    "transposed": lambda random, dtype: drawn(5, 7)(random, dtype).t(),
    "channels last": lambda random, dtype: drawn(2, 3, 5, 5)(random, dtype).to(memory_format=torch.channels_last),
    "one block": drawn(8, 8),
    "zeros": lambda random, dtype: torch.zeros(3, 5, dtype=dtype),
    "frozen": drawn(6),
    "never a gradient": drawn(6),
    "sometimes a gradient": drawn(70),
    "large": drawn(40, 33),
    "large, whole blocks": drawn(64, 32),
}


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tensors of a thousand elements count as large, and a few blocks as many."""
    monkeypatch.setattr("descend.optim.engine.arena.LARGE", 1000)
    monkeypatch.setattr("descend.optim.engine.arena.TOGETHER", 256)
    monkeypatch.setattr("descend.optim.engine.blocks.CHUNK", 8)


def trained(rule: Rule, runner: str, dtype: torch.dtype, steps: int = 6) -> dict[str, Tensor]:
    """The weights and state after some steps, with two groups that differ in rate, decay and clipping."""
    random = torch.Generator().manual_seed(3)
    weights = {name: torch.nn.Parameter(make(random, dtype)) for name, make in TENSORS.items()}
    weights["frozen"].requires_grad_(False)
    named = list(weights.items())
    optimizer = Optimizer(
        [{"params": named[:6]}, {"params": named[6:], "lr": 3e-3, "weight_decay": 0.0}],
        rule,
        lr=1e-2,
        weight_decay=0.1,
        clip_value=1.5,
        rescale_grad=0.5,
        runner=runner,
        seed=7,
    )
    for step in range(steps):
        for name, p in weights.items():
            g = torch.randn(p.shape, generator=random).to(dtype)
            silent = name in ("frozen", "never a gradient") or (name == "sometimes a gradient" and step % 2)
            p.grad = None if silent else torch.zeros_like(p) if step == 4 else g
        optimizer.step()
    state = {f"{name}.{key}": x for name, p in weights.items() for key, x in optimizer.state[p].items()}
    assert not optimizer.state[weights["frozen"]]
    return {**{name: p.detach() for name, p in weights.items()}, **state}


def compare(rule: Rule, runner: str, dtype: torch.dtype) -> None:
    expected, found = trained(rule, "plain", dtype), trained(rule, runner, dtype)
    assert found.keys() == expected.keys()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 1e-2)
    for name, value in expected.items():
        exact = name.split(".")[0] in ("frozen", "never a gradient") or name.endswith(".step")
        scale = max(1.0, value.abs().max().item() if value.numel() else 0.0)
        allowed = 0.0 if exact else tolerance
        torch.testing.assert_close(found[name], value, rtol=allowed, atol=allowed * scale, msg=f"{name} under {runner}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
def test_blocks_agree_with_plain(rule: Rule, dtype: torch.dtype) -> None:
    compare(rule, "blocks", dtype)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(kernels.obstacle("cpu") is not None, reason="no C++ compiler")
@pytest.mark.parametrize("rule", [rule for rule in ALL_RULES if not rule.whole_tensor], ids=repr)
def test_compiled_agrees_with_plain(rule: Rule) -> None:
    compare(rule, "compiled", torch.float32)


def equal(rule: Rule, dtype: torch.dtype) -> None:
    expected, found = trained(rule, "blocks", dtype), trained(rule, "compiled", dtype)
    different = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    assert not different


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(kernels.obstacle("cpu") is not None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [rule for rule in ALL_RULES if not rule.whole_tensor], ids=repr)
def test_compiled_equals_blocks_to_the_last_bit(rule: Rule, dtype: torch.dtype) -> None:
    equal(rule, dtype)


@pytest.mark.skipif(kernels.obstacle("cpu") is not None, reason="no C++ compiler")
def test_compiled_adam_equals_blocks_to_the_last_bit() -> None:
    equal(Adam(), torch.float32)


def python_calls(rule: Rule, tensors: int) -> int:
    """Of Python's functions and of C's, in one step under compiled kernels."""
    params = [torch.nn.Parameter(torch.ones(64)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.ones(64)
    optimizer = Optimizer(params, rule, lr=1e-3, weight_decay=0.1, runner="compiled")
    for _ in range(3):
        optimizer.step()
    assert optimizer.is_compiled
    seen = collections.Counter[str]()
    sys.setprofile(lambda frame, event, arg: seen.update([event]))
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]


TOGETHER = {type(rule): rule for rule in ALL_RULES if not rule.whole_tensor and "noise" not in rule.needs}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(kernels.obstacle("cpu") is not None, reason="no C++ compiler")
@pytest.mark.parametrize("rule", TOGETHER.values(), ids=repr)
def test_python_does_nothing_for_each_tensor(rule: Rule) -> None:
    assert python_calls(rule, 300) <= python_calls(rule, 10) + 5


def test_the_limits_are_those_of_the_arena() -> None:
    """The fixture above replaces names that the arena reads."""
    assert parts.LARGE % parts.BLOCK == 0
    assert parts.TOGETHER % parts.BLOCK == 0
