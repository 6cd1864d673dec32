"""What a step on a GPU does with gradients that are not finite, and what it sends; kernels run on a processor here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from system_needs import needs_gnu_compiler
from torch import Tensor

import descend.optim
from descend.errors import ConfigurationError, NumericalError
from descend.optim.engine.launch import DeviceKernels, DeviceTables

pytestmark = [
    needs_gnu_compiler,
    pytest.mark.usefixtures("_on_cpu"),
]


def made(dtype: torch.dtype = torch.float32, runner: str = "compiled", **options: Any) -> Any:
    """An optimizer that has made two steps, since the first moves its parameters into an arena."""
    random = torch.Generator().manual_seed(0)
    params = [(name, torch.nn.Parameter(torch.randn(n, generator=random).to(dtype))) for name, n in SIZES.items()]
    ours = descend.optim.AdamW(params, lr=1e-2, runner=runner, **options)
    for _ in range(2):
        step(ours)
    return ours


SIZES = {"first": 3, "second": 5000, "third": 70}


def step(ours: Any, bad: str | None = None, scale: float = 1.0, seed: int = 0) -> None:
    random = torch.Generator().manual_seed(seed)
    for name, p in zip(SIZES, ours.param_groups[0]["params"], strict=True):
        p.grad = (scale * torch.randn(p.shape, generator=random)).to(p.dtype)
        if name == bad:
            p.grad[-1] = float("nan")
    ours.step()


def held(ours: Any) -> list[Tensor]:
    params = ours.param_groups[0]["params"]
    return [x.detach().clone() for p in params for x in (p, ours.state[p]["m"], ours.state[p]["v"])]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(map(torch.equal, found, expected))


def kernels(ours: Any) -> DeviceKernels:
    (arena,) = ours._arenas.arenas
    assert isinstance(arena.native, DeviceKernels)
    return arena.native


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_step_after_a_bad_gradient_raises_and_nothing_was_changed(name: str) -> None:
    ours = made()
    before = held(ours)
    step(ours, bad=name)
    assert same(held(ours), before)
    with pytest.raises(NumericalError, match=rf"step 3 of AdamW: the gradient of '{name}' is not finite; nothing"):
        step(ours)
    assert same(held(ours), before)
    assert ours.updates == 2
    assert all(ours.state[p]["step"] == 2 for p in ours.param_groups[0]["params"])


def test_after_the_error_training_goes_on_as_if_the_step_had_not_been() -> None:
    ours, other = made(), made()
    step(ours, bad="third")
    with pytest.raises(NumericalError):
        ours.settle()
    step(ours)
    step(other)
    assert same(held(ours), held(other))


def test_a_skipped_step_is_counted_when_the_next_one_begins() -> None:
    ours, other = made(on_nonfinite="skip"), made()
    step(ours, bad="first")
    step(ours)
    step(other)
    assert (ours.updates, ours.skipped) == (3, 1)
    assert same(held(ours), held(other))


def test_a_saved_state_knows_of_the_last_step() -> None:
    ours = made(on_nonfinite="skip")
    step(ours, bad="second")
    assert ours.state_dict()["param_groups"][0]["updates"] == 2
    assert ours.skipped == 1


def test_allow_checks_nothing() -> None:
    ours = made(on_nonfinite="allow")
    step(ours, bad="first")
    ours.settle()
    assert ours.updates == 3
    assert held(ours)[0].isnan().any()
    module = kernels(ours)._module
    assert not [name for name in module.launched[-3:] if name.startswith("check")]


def test_what_a_scaler_hands_over_is_read_on_the_device() -> None:
    ours, other = made(), made()
    ours.grad_scale, ours.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
    step(ours, scale=1024.0)
    step(other)
    assert same(held(ours), held(other))
    before = held(ours)
    ours.found_inf = torch.tensor(1.0)
    step(ours, bad="first")
    ours.settle()
    assert same(held(ours), before)
    assert (ours.updates, ours.skipped) == (3, 1)
    del ours.grad_scale, ours.found_inf
    step(ours)
    step(other)
    assert same(held(ours), held(other))


def test_parameters_of_two_precisions_are_updated_both_or_not_at_all() -> None:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(9, generator=random).to(t)) for t in (torch.float32, torch.bfloat16)]
    ours = descend.optim.SGD(params, lr=1e-2, runner="compiled", on_nonfinite="skip")
    for bad in (None, None, 0, 1):
        before = [p.detach().clone() for p in params]
        for i, p in enumerate(params):
            p.grad = torch.full_like(p, float("inf") if i == bad else 1.0)
        ours.step()
        changed = [not torch.equal(p, x) for p, x in zip(params, before, strict=True)]
        assert changed == [bad is None] * 2


def test_one_launch_a_stage_serves_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made()
    module = kernels(ours)._module
    module.launched.clear()
    step(ours)
    assert module.launched == ["check_float32", "numbers0", "stage0"]


def test_what_has_not_changed_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made()
    sent: list[str] = []
    on_device = kernels(ours)
    for name, x in on_device.tables.held.items():
        monkeypatch.setitem(on_device.tables.held, name, Recorded(x, name, sent))
    gradients = [p.grad for p in ours.param_groups[0]["params"]]
    for g in gradients:
        g.fill_(0.5)  # at the same addresses
    ours.step()
    assert not sent
    ours.param_groups[0]["lr"] = 0.5
    ours.step()
    assert sent == ["input"]


class Recorded:
    """A tensor of the device that notes copies into it."""

    def __init__(self, x: Tensor, name: str, sent: list[str]) -> None:
        self.x, self.name, self.sent = x, name, sent

    def copy_(self, value: Tensor) -> None:
        self.sent.append(self.name)
        self.x.copy_(value)


def test_a_step_count_that_was_written_is_sent() -> None:
    ours, other = made(), made(runner="plain")
    for optimizer in (ours, other):
        for p in optimizer.param_groups[0]["params"]:
            optimizer.state[p]["step"].fill_(0)
        step(optimizer)
    assert all(torch.allclose(a, b, rtol=2e-6, atol=2e-6) for a, b in zip(held(ours), held(other), strict=True))


def test_a_recorded_step_takes_the_counts_of_the_device() -> None:
    ours = made()
    on_device = kernels(ours)
    on_device.tables.held["count"] += 5
    on_device.recorded = True
    ours.settle()
    assert ours.updates == 7
    assert all(ours.state[p]["step"] == 7 for p in ours.param_groups[0]["params"])
    assert not on_device.recorded


class Sent:
    """An event of a copy that has been launched; within a capture nothing may wait for it."""

    def synchronize(self) -> None:
        raise AssertionError("waited while a graph was captured")


def test_a_captured_step_reads_what_the_step_before_has_found_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made()
    step(ours, bad="third")
    ours._arenas.report.arrived = Sent()
    kernels(ours).recorded = True
    monkeypatch.setattr(DeviceTables, "is_capturing", lambda self: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(NumericalError, match="step 3 of AdamW: the gradient of 'third' is not finite"):
        ours.settle()
    assert kernels(ours).recorded  # its counts are on the device, which nothing may ask now


def test_a_capture_right_behind_a_step_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made()
    step(ours)
    ours._arenas.report.arrived = Sent()
    ours._arenas.report.flags[0].fill_(-1)  # not yet there
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ConfigurationError, match=r"call torch\.cuda\.synchronize\(\) before the capture"):
        ours.settle()
