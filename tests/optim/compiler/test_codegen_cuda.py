"""Kernels for CUDA: NVRTC takes the source of every rule, and it computes what `plain` computes. No GPU is needed.

A C++ compiler builds the same source for a processor (`cuda_on_cpu.h`), and the engine launches it as on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from optimizer_inputs import group_settings
from system_needs import needs_gnu_compiler
from torch import Tensor

from descend.optim.compiler.codegen_cuda import emit_cuda, plan
from descend.optim.compiler.trace import Untraceable, trace
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, LAMB, SGLD, Adam, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

TRACED = [rule for rule in ALL_RULES if not rule.whole_tensor]
FEW = [(Adam(), torch.float32), (LAMB(), torch.float32), (SGLD(), torch.bfloat16)]

EVERY = [(rule, torch.float32) for rule in TRACED]
EVERY += [(rule, dtype) for rule in TRACED[::6] for dtype in (torch.bfloat16, torch.float16, torch.float64)]

# More than a unit of 4,096 elements, ends that are no multiple of 4, views that are not aligned, and none at all.
SHAPES: dict[str, Callable[[torch.Generator], Tensor]] = {
    "scalar": lambda random: torch.randn((), generator=random),
    "one": lambda random: torch.randn(1, generator=random),
    "empty": lambda random: torch.randn(0, generator=random),
    "matrix": lambda random: torch.randn(4, 3, generator=random),
    "transposed": lambda random: torch.randn(5, 7, generator=random).t(),
    "units": lambda random: torch.randn(2 * 4096 + 67, generator=random),
    "unit": lambda random: torch.randn(64, 64, generator=random),
    "zeros": lambda random: torch.zeros(3, 5),
    "never": lambda random: torch.randn(6, generator=random),
    "sometimes": lambda random: torch.randn(70, generator=random),
    **{f"small {i}": (lambda random, i=i: torch.randn(1 + i, generator=random)) for i in range(12)},
}


def gradient_like(p: Tensor, random: torch.Generator) -> Tensor:
    """A gradient that lies as its parameter does; that of a long vector begins beside an address of 16 bytes."""
    g = torch.randn(p.shape, generator=random).to(p.dtype)
    if p.ndim == 1 and p.numel() > 100:
        return torch.cat([g[:1], g])[1:]
    return torch.empty_like(p).copy_(g)


def trained(rule: Rule, runner: str, dtype: torch.dtype, steps: int = 4) -> dict[str, Tensor]:
    """Weights and state after some steps of two groups that differ in rate, decay and constants of the update."""
    random = torch.Generator().manual_seed(3)
    weights = {name: torch.nn.Parameter(make(random).to(dtype)) for name, make in SHAPES.items()}
    named = list(weights.items())
    optimizer = Optimizer(
        [{"params": named[:6]}, {"params": named[6:], "lr": 3e-3, "weight_decay": 0.0}],
        rule,
        lr=lambda step: 1e-2 / (1 + step),
        weight_decay=0.1,
        clip_value=1.5,
        rescale_grad=0.5,
        runner=runner,
        seed=7,
    )
    for step in range(steps):
        for name, p in weights.items():
            silent = name == "never" or (name == "sometimes" and step % 2)
            p.grad = None if silent else gradient_like(p, random)
        optimizer.step()
    assert optimizer.is_compiled == (runner == "compiled")
    state = {f"{name}.{key}": x for name, p in weights.items() for key, x in optimizer.state[p].items()}
    return {**{name: p.detach() for name, p in weights.items()}, **state}


def compare(rule: Rule, dtype: torch.dtype) -> int:
    """Compare the kernels with `plain`.

    Returns:
        How many tensors differ in some bit.
    """
    expected, found = trained(rule, "plain", dtype), trained(rule, "compiled", dtype)
    assert found.keys() == expected.keys()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 1e-2)
    for name, value in expected.items():
        exact = name.split(".")[0] == "never" or name.endswith(".step")
        scale = max(1.0, value.abs().max().item() if value.numel() else 0.0)
        allowed = 0.0 if exact else tolerance
        torch.testing.assert_close(found[name], value, rtol=allowed, atol=allowed * scale, msg=f"{name} of {rule}")
    return sum(not torch.equal(found[name], value) for name, value in expected.items())


@needs_gnu_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("rule", "dtype"), FEW, ids=str)
def test_kernels_agree_with_plain(rule: Rule, dtype: torch.dtype) -> None:
    compare(rule, dtype)


@needs_gnu_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("rule", "dtype"), EVERY, ids=str)
def test_kernels_of_every_rule_agree_with_plain(rule: Rule, dtype: torch.dtype) -> None:
    compare(rule, dtype)


def test_a_plan_has_a_row_for_every_number_and_a_launch_a_stage() -> None:
    made = plan(trace(group_settings(LAMB(), lr=1.0, decay=1.0), False))
    assert made.launches == ("numbers0", "stage0", "numbers1", "stage1")
    assert sorted(made.rows.values()) == list(range(len(made.rows)))
    assert all(at in made.rows for kernel in made.kernels for at in kernel.numbers)


def test_rates_and_constants_are_no_part_of_the_source() -> None:
    sources = {
        emit_cuda(trace(group_settings(Adam(beta1=beta), lr=lr), False), "float32", None)
        for beta, lr in ((0.9, 0.1), (0.5, 3.0))
    }
    assert len(sources) == 1


def test_a_rule_without_a_form_is_refused() -> None:
    with pytest.raises(Untraceable, match="logaddexp has no form"):
        emit_cuda(trace(group_settings(Odd(), lr=1.0), False), "float32", None)


@dataclass(frozen=True)
class Odd(Rule):
    """A rule of a function that has no form in C++ here."""

    def init(self, p: Tensor) -> None:
        return None

    def direction(self, g: Tensor, p: Tensor) -> tuple[Tensor, None]:
        return torch.logaddexp(g, p), None
