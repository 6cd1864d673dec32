"""Stacks of matrices, which are for GPUs: updated on the CPU here, beside one tensor at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import descend.optim
from descend.optim.engine import batched, plain
from descend.optim.optimizer import Optimizer
from descend.optim.rules import LAMB, SGLD, SOAP, Adafactor, Adam, GroupAdaGrad, Muon, Rule

SHAPES = [(5, 5), (7,), (5, 5), (6, 2, 3), (5, 5), (7,), (6, 2, 3), (2, 3), (4, 4)]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Heights of the stacks of each step; every tensor counts as one on a GPU."""
    heights: list[int] = []
    step_stacks, can_be_stacked = batched._step_stacks, batched._can_be_stacked

    def on_a_gpu(task: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "device", torch.device("cuda"), raising=False)
            return can_be_stacked(task)

    def counted(held: Any) -> None:
        heights.extend(len(tasks) for tasks in held)
        step_stacks(held)

    monkeypatch.setattr(batched, "_can_be_stacked", on_a_gpu)
    monkeypatch.setattr(batched, "_step_stacks", counted)
    return heights


def stepped(rule: Rule, runner: str, dtype: torch.dtype = torch.float64, **options: Any) -> list[Tensor]:
    """Weights and state after twelve updates; every third gradient is missing in the second."""
    draw = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)) for shape in SHAPES]
    ours = Optimizer(params, rule, lr=1e-2, runner=runner, **options)
    for step in range(12):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(dtype)
            p.grad = None if step == 1 and i % 3 == 0 else g
        ours.step()
    held = [x for p in params for x in ours.state[p].values() if isinstance(x, Tensor) and not isinstance(rule, SOAP)]
    return [x.detach() for x in (*params, *held)]


@pytest.mark.parametrize("rule", [Muon(), Muon(nesterov=False), SOAP(frequency=3), GroupAdaGrad()], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_stack_is_updated_as_its_tensors_are(rule: Rule, decay: float, stacks: list[int]) -> None:
    expected = stepped(rule, "plain", weight_decay=decay)
    assert stacks == []
    found = stepped(rule, "blocks", weight_decay=decay)
    assert set(stacks) >= {2, 3}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_weights_of_low_precision_keep_their_master(stacks: list[int]) -> None:
    for one, other in zip(
        stepped(Muon(), "blocks", torch.bfloat16), stepped(Muon(), "plain", torch.bfloat16), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)
    assert stacks


@pytest.mark.parametrize("rule", [Adafactor(), Adam(), LAMB()], ids=lambda rule: type(rule).__name__)
def test_texts_with_means_and_norms_are_mapped_too(rule: Rule, stacks: list[int], monkeypatch: Any) -> None:
    """No runner of a CPU brings them here, a GPU's does where nothing is compiled."""
    monkeypatch.setattr("descend.optim.engine.arena_manager.ArenaManager.step_matrices", lambda self, tasks: tasks)
    monkeypatch.setattr("descend.optim.engine.arena_manager.fits_arena", lambda p, in_place: False)
    for one, other in zip(stepped(rule, "blocks"), stepped(rule, "plain"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert stacks


def test_stacks_are_bounded_in_memory(stacks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "MOST_ELEMENTS", 2 * 25)
    stepped(Muon(), "blocks")
    assert max(stacks) == 2


@pytest.mark.usefixtures("stacks")
def test_other_tensors_are_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones, those of a rule that draws noise, by the name of each tensor, and one that is alone in its precision."""
    left: list[str] = []
    step_plain = plain.step_plain

    def seen(tasks: Any, seed: int) -> None:
        left.extend(task.name for task in tasks)
        step_plain(tasks, seed)

    monkeypatch.setattr("descend.optim.optimizer.step_plain", seen)
    sizes = {"a": (4, 4), "b": (4, 4), "another shape": (3, 5), "none": (0, 4), "none too": (0, 4)}
    params = [(name, nn.Parameter(torch.ones(size))) for name, size in sizes.items()]
    params.append(("single", nn.Parameter(torch.ones(3, 5, dtype=torch.float64))))
    noisy = [(f"noisy {i}", nn.Parameter(torch.ones(3))) for i in range(2)]
    ours = descend.optim.Muon([{"params": params}, {"params": noisy, "rule": SGLD()}], lr=0.1, runner="blocks")
    monkeypatch.setattr("descend.optim.engine.arena_manager.fits_arena", lambda p, in_place: False)
    for _, p in (*params, *noisy):
        p.grad = torch.ones_like(p)
    ours.step()
    assert sorted(left) == ["noisy 0", "noisy 1", "none", "none too", "single"]


def test_nothing_is_stacked_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "_step_stacks", None)
    stepped(Muon(), "blocks")
