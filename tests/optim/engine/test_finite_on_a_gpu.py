"""A flag on a device keeps an update from happening; the host reads it later, or at once where it has to.

A processor runs the kernels (`cuda_on_cpu.py`). Those of an arena are in `test_launch_on_a_gpu.py`, here are those of
rules with means over rows and columns, and both together.
"""

from __future__ import annotations

import pytest
import torch
from system_needs import needs_gnu_compiler

import descend.optim
from descend.errors import NumericalError
from descend.optim.rules import SGD, Adafactor
from tests.optim.engine.test_matrices import Run

pytestmark = [
    needs_gnu_compiler,
    pytest.mark.usefixtures("_on_cpu"),
]


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


def test_allow_checks_nothing() -> None:
    run = Run("compiled", on_nonfinite="allow")
    for _ in range(2):
        run.step()
    run.set_gradients()
    run.params[0].grad[0] = float("nan")
    run.ours.step()
    assert run.params[0].isnan().any()
    modules = [arena._kernel[0] for arena in run.ours._arenas.matrices]
    assert not [name for module in modules for name in module.launched if name.startswith("check")]


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


def test_beside_parameters_without_kernels_the_host_asks_within_the_step() -> None:
    """A parameter with gaps in its memory gets the reference update."""
    run = Run("compiled", on_nonfinite="skip")
    run.params[0].data = torch.ones(30, 40)[:, ::2]
    for _ in range(3):
        run.step()
    assert run.held == len(run.params) - 1
    before = run.values()
    for i in (0, 3):
        run.set_gradients()
        run.params[i].grad.view(-1)[5] = float("-inf")
        run.ours.step()
        assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))
    assert (run.ours.updates, run.ours.skipped) == (3, 2)
    run.step()
    assert run.ours.updates == 4
    assert not any(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))
