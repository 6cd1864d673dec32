"""Nothing that is not finite reaches a weight: one bad number anywhere, in any precision, under any runner."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import descend.optim
from descend.errors import NumericalError
from descend.optim.compiler import cache as kernels

RUNNERS = ["plain", "blocks", *(["compiled"] if kernels.compiler() else [])]
SIZES = [1, 64, 70, 40000, 3]
BAD = [float("nan"), float("inf"), -float("inf")]


def net(runner: str, dtype: torch.dtype, policy: str) -> tuple[descend.optim.Adam, list[torch.nn.Parameter]]:
    params = [torch.nn.Parameter(torch.ones(n, dtype=dtype)) for n in SIZES]
    for p in params:
        p.grad = torch.full_like(p, 0.5)
    named = [(f"w{i}", p) for i, p in enumerate(params)]
    return descend.optim.Adam(named, runner=runner, on_nonfinite=policy), params


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@settings(max_examples=8)
@given(
    which=st.integers(0, len(SIZES) - 1),
    where=st.floats(0, 1, exclude_max=True),
    bad=st.sampled_from(BAD),
    steps=st.integers(0, 2),
)
def test_one_bad_number_stops_everything(
    runner: str, dtype: torch.dtype, which: int, where: float, bad: float, steps: int
) -> None:
    ours, params = net(runner, dtype, "raise")
    for _ in range(steps):
        ours.step()
    gradient = params[which].grad
    assert gradient is not None
    gradient[int(where * SIZES[which])] = bad
    before = copy.deepcopy((params, ours.state_dict()["state"]))
    with pytest.raises(NumericalError, match=rf"step {steps + 1} of Adam: the gradient of 'w{which}' is not finite"):
        ours.step()
    after = (params, ours.state_dict()["state"])
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    torch.testing.assert_close(after[1], before[1], rtol=0, atol=0)
    assert ours.updates == steps


@pytest.mark.parametrize("runner", RUNNERS)
def test_skipping_counts_and_goes_on(runner: str) -> None:
    ours, params = net(runner, torch.float32, "skip")
    ours.step()
    params[3].grad = torch.full_like(params[3], float("nan"))
    before = params[0].detach().clone()
    ours.step()
    assert torch.equal(params[0], before)
    assert (ours.updates, ours.skipped) == (1, 1)
    params[3].grad = torch.ones_like(params[3])
    ours.step()
    assert (ours.updates, ours.skipped) == (2, 1)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_large_numbers_whose_sum_overflows_are_fine(runner: str, dtype: torch.dtype) -> None:
    ours, params = net(runner, dtype, "raise")
    for p in params:
        p.grad = torch.full_like(p, torch.finfo(dtype).max)
    ours.step()
    assert ours.updates == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_allow_applies_nonfinite_gradients(runner: str) -> None:
    ours, params = net(runner, torch.float32, "allow")
    params[4].grad = torch.tensor([0.5, float("nan"), 0.5])
    ours.step()
    assert params[4].isnan().tolist() == [False, True, False]
    assert params[0].isfinite().all()
