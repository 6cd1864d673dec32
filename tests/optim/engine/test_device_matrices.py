"""Kernels for CUDA for rules with means over rows and columns: what they compute, and a flag that keeps them from it.

A processor runs them (`cuda_on_cpu.py`), and the engine launches them as on a GPU.
"""

from __future__ import annotations

import functools
import shutil
from typing import TYPE_CHECKING, Any

import cuda_on_cpu
import numpy as np
import pytest
import torch
from torch import Tensor

import descend.optim
from descend.errors import ConfigurationError, NumericalError
from descend.optim.compiler.codegen_cuda_matrix import device_plan
from descend.optim.engine import device_matrices
from descend.optim.engine.matrix_arena import DeviceMatrixArena
from descend.optim.rules import SGD, Adafactor, Rule
from tests.optim.engine.test_matrices import Bounded, Centered, Mean, many
from tests.optim.engine.test_matrix_arena import CHANGES, Run, agree

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
    pytest.mark.usefixtures("_on_cpu"),
]

# Parts of columns, rows of several threads and of all of a block, small matrices, one row, one column.
SHAPES = [(130, 200), (3, 4, 3, 3), (90, 1), (1, 90), (64, 65), (3, 2, 70, 130), (2, 5000), (5000, 2), (300, 70, 1, 1)]


@pytest.fixture
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_on_cpu.install(monkeypatch)


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


def test_a_unit_may_have_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rest(Adafactor(), SHAPES, "plain", torch.float64)
    for unit in (256, 1000):
        monkeypatch.setattr(device_matrices, "UNIT", unit)
        torch.testing.assert_close(
            rest(Adafactor(), SHAPES, "compiled", torch.float64), expected, rtol=1e-11, atol=1e-12
        )


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


close = functools.partial(torch.allclose, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_changed_between_steps_counts(change: Callable[[Run], None]) -> None:
    run = agree(change, torch.float64, close)
    assert all(isinstance(arena, DeviceMatrixArena) for arena in run.ours._arenas.matrices)


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
    assert vectors == ["look_float32", "elements0", "numbers1", "elements1"]
    assert matrices == [
        "look_float32",
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
    assert sorted(name for plan in plans for name in plan.homes.values()) == ["s.column", "s.row"]
    assert all(device_plan(plan.made.text).launches == plan.launches for plan in plans)


@pytest.mark.parametrize(("i", "name"), [(0, "group 0, weights 0"), (1, "group 0, weights 1")])
def test_the_step_after_a_bad_gradient_raises_and_nothing_was_changed(i: int, name: str) -> None:
    """Neither matrices nor vectors, which have kernels of their own."""
    run = Run("compiled", on_nonfinite="raise")
    for _ in range(2):
        run.step()
    before = run.values()
    run.set_gradients()
    grad = run.params[i].grad
    assert grad is not None
    grad.view(-1)[-1] = float("inf")
    run.ours.step()
    with pytest.raises(NumericalError, match=f"step 3 of Adafactor: the gradient of '{name}' is not finite"):
        run.ours.step()
    assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))
    assert run.ours.updates == 2


def test_a_skipped_step_is_as_if_it_had_not_been() -> None:
    runs = [Run("compiled", on_nonfinite="skip") for _ in range(2)]
    for run in runs:
        for _ in range(2):
            run.step()
    state = runs[0].random.get_state()
    runs[0].set_gradients()
    runs[0].params[3].grad.view(-1)[0] = float("nan")
    runs[0].ours.step()
    runs[0].random.set_state(state)
    for run in runs:
        run.step()
    assert all(torch.equal(a, b) for a, b in zip(*(run.values() for run in runs), strict=True))
    assert [(run.ours.updates, run.ours.skipped) for run in runs] == [(3, 1), (3, 0)]


def test_allow_looks_at_nothing() -> None:
    run = Run("compiled", on_nonfinite="allow")
    for _ in range(2):
        run.step()
    run.set_gradients()
    run.params[0].grad[0] = float("nan")
    run.ours.step()
    assert run.params[0].isnan().any()
    modules = [arena._kernel[0] for arena in run.ours._arenas.matrices]
    assert not [name for module in modules for name in module.launched if name.startswith("look")]


def test_what_a_scaler_hands_over_is_read_on_the_device() -> None:
    runs = [Run("compiled") for _ in range(2)]
    for run in runs:
        for _ in range(2):
            run.step()
    for run, scale in zip(runs, (1024.0, 1.0), strict=True):
        run.set_gradients()
        for p in run.params:
            p.grad *= scale
    runs[0].ours.grad_scale, runs[0].ours.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
    for run in runs:
        run.ours.step()
    assert all(torch.equal(a, b) for a, b in zip(*(run.values() for run in runs), strict=True))
    before = runs[0].values()
    runs[0].ours.found_inf = torch.tensor(1.0)
    runs[0].step()
    runs[0].ours.settle()
    assert all(torch.equal(a, b) for a, b in zip(before, runs[0].values(), strict=True))
    assert (runs[0].ours.updates, runs[0].ours.skipped) == (3, 1)


def test_parameters_of_elementwise_rules_are_updated_with_them_or_not_at_all() -> None:
    run = Run("compiled")
    groups = [{"params": run.params[:3], "rule": SGD()}, {"params": run.params[3:]}]
    run.ours = descend.optim.Optimizer(groups, Adafactor(), lr=0.1, runner="compiled", on_nonfinite="skip")
    for _ in range(3):
        run.step()
    for i in (0, 3, 5):
        before = run.values()
        run.set_gradients()
        run.params[i].grad.fill_(float("nan"))
        run.ours.step()
        run.ours.settle()
        assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))
    assert (run.ours.updates, run.ours.skipped) == (3, 3)


def test_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would repeat the numbers of one step."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    device_matrices.refuse_capture(torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="leave the step out of the capture"):
        device_matrices.refuse_capture(torch.device("cuda", 0))


def test_units_cover_all_things_once() -> None:
    totals, most = np.array([1, 7, 4096, 9000]), np.array([3, 7, 1000, 4096])
    units = device_matrices._Units.of(totals, most)
    for i, (total, size) in enumerate(zip(totals, most, strict=True)):
        mine = units.tensor == i
        found = [at for f, n in zip(units.first[mine], units.size[mine], strict=True) for at in range(f, f + n)]
        assert found == list(range(total))
        assert units.size[mine].max() <= size
        assert units.border[i + 1] - units.border[i] == mine.sum()
    assert units.start.tolist() == [0, 1, 8, 4104]
    assert units.room == totals.sum()
