"""Kernels for CUDA for rules with means over rows and columns: they compute what `plain` computes, in few launches.

A processor runs them (`cuda_on_cpu.py`), and the engine launches them as on a GPU.
"""

from __future__ import annotations

from typing import Any

import cuda_on_cpu
import pytest
import torch
from system_needs import needs_gnu_compiler
from torch import Tensor

import descend.optim
from descend.optim.compiler.codegen_cuda_matrix import device_plan
from descend.optim.rules import Adafactor, Rule
from tests.optim.engine.test_matrices import Bounded, Centered, Mean, Run, many

pytestmark = [
    needs_gnu_compiler,
    pytest.mark.usefixtures("_on_cpu"),
]

# Parts of columns, rows of several threads and of all of a block, small matrices, one row, one column.
SHAPES = [(130, 200), (3, 4, 3, 3), (90, 1), (1, 90), (64, 65), (3, 2, 70, 130), (2, 5000), (5000, 2), (300, 70, 1, 1)]


def rest(rule: Rule, shapes: list[tuple[int, ...]], runner: str, dtype: torch.dtype) -> list[Tensor]:
    """Weights and state after three steps, in which each tensor is left out once."""
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in shapes]
    ours = descend.optim.Optimizer(params, rule, lr=0.1, weight_decay=0.1, runner=runner)
    for step in range(3):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(dtype)
            p.grad = None if (i + step) % 3 == 2 else g
        ours.step()
    assert ours.is_compiled == (runner == "compiled")
    return [x.detach() for p in params for x in (p, *ours.state[p].values())]


@pytest.mark.parametrize("rule", [Adafactor(), Centered(), Mean()], ids=lambda rule: type(rule).__name__)
def test_kernels_agree_with_the_reference_update(rule: Rule) -> None:
    """In float64 an order of sums makes a difference of 1e-15, and a wrong index one of 1e-3 and more."""
    shapes = SHAPES if rule != Adafactor() else [*SHAPES, (), (1,), (9000,)]
    found, expected = (rest(rule, shapes, runner, torch.float64) for runner in ("compiled", "plain"))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
def test_in_the_precisions_of_training(dtype: torch.dtype, tolerance: float) -> None:
    found, expected = (rest(Adafactor(), SHAPES, runner, dtype) for runner in ("compiled", "plain"))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_numbers_that_follow_from_norms_and_an_old_value_that_is_read_late() -> None:
    shapes = [(7, 5), (20, 200), (130, 70), (17, 3, 3)]
    found, expected = (
        many(Bounded(), Bounded(1.5), runner, torch.float64, shapes=shapes) for runner in ("compiled", "plain")
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_the_sides_of_large_matrices_are_split_as_those_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides for which 32 bits do not suffice take another division."""
    source = cuda_on_cpu.EmulatedMatrixJob.source

    def wide(self: Any) -> str:
        narrow = "if (!((x | by) >> 32))"
        assert narrow in source(self)
        return source(self).replace(narrow, "if (false)")

    monkeypatch.setattr(cuda_on_cpu.EmulatedMatrixJob, "source", wide)
    found, expected = (rest(Adafactor(), SHAPES[:6], runner, torch.float64) for runner in ("compiled", "plain"))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_a_stage_has_one_launch_of_each_kind_whatever_there_are_of_tensors() -> None:
    run = Run("compiled")
    for _ in range(2):
        run.step()
    launched: list[list[str]] = []
    for arena in run.ours._arenas.matrices:
        module = arena._kernel[0]
        module.launched.clear()
        launched.append(module.launched)
    run.step()
    matrices, vectors = sorted(launched, key=len, reverse=True)
    assert vectors == ["check_float32", "elements0", "numbers1", "elements1"]
    assert matrices == [
        "check_float32",
        *["rows0", "parts0", "elements0"],
        *["numbers1", "row1", "column1", "means1"],
        *["matrix2", "row2", "elements2"],
        *["numbers3", "elements3"],
    ]


def test_new_state_goes_to_its_place_unless_the_old_one_is_read_later() -> None:
    run = Run("compiled")
    for _ in range(2):
        run.step()
    plans = [arena._kernel[1] for arena in run.ours._arenas.matrices]
    assert sorted(name for plan in plans for name in plan.in_place.values()) == ["s.column", "s.row"]
    assert all(device_plan(plan.made.trace).launches == plan.launches for plan in plans)
