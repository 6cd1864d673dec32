"""Stacks of matrices, which are for GPUs: updated on the CPU here, beside one tensor at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import descend.optim
from descend.optim.engine import batched, plain
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, SGLD, SOAP, Adafactor, GroupAdaGrad, Muon, Rule
from descend.torch_private import dispatch_mode, operator_schema, version_counter

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


@dataclass(frozen=True)
class Drawing(Rule):
    """Draws from torch's own generator."""

    whole_tensor = True

    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        return torch.rand_like(g) + g @ g.mT, None


def test_tensors_of_a_stack_draw_numbers_of_their_own(stacks: list[int]) -> None:
    params = [nn.Parameter(torch.zeros(3, 3)) for _ in range(4)]
    ours = Optimizer(params, Drawing(), lr=1.0)
    for _ in range(2):
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.zeros_like(p)
        ours.step()
        drawn = torch.stack([old - p.detach() for old, p in zip(before, params, strict=True)])
        assert len(drawn.unique()) == drawn.numel()
        assert bool(((drawn >= 0) & (drawn < 1)).all())
    assert stacks == [4, 4]


# But those that draw noise, by the name of each tensor, and SOAP, whose bases are arbitrary where g gᵀ is singular.
MAPPED = {type(rule): rule for rule in ALL_RULES if "noise" not in rule.needs and not isinstance(rule, SOAP)}


@pytest.mark.parametrize("rule", MAPPED.values(), ids=lambda rule: type(rule).__name__)
def test_texts_with_means_and_norms_are_mapped_too(rule: Rule, stacks: list[int], monkeypatch: Any) -> None:
    """No runner of a CPU brings them here, a GPU's does where nothing is compiled."""
    monkeypatch.setattr(
        "descend.optim.engine.arena_manager.ArenaManager.step_matrices", lambda self, tasks, settings: tasks
    )
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
    """Empty ones, those of a rule that draws noise, by the name of each tensor, and one alone in its precision."""
    left: list[str] = []
    step_plain = plain.step_plain

    def seen(tasks: Any, seed: int) -> None:
        left.extend(task.name for task in tasks)
        step_plain(tasks, seed)

    monkeypatch.setattr("descend.optim.optimizer.step_plain", seen)
    monkeypatch.setattr("descend.optim.optimizer.step_on_cpu", list)
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


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runner of a CPU leaves rules with means to stacks, a GPU's does."""
    monkeypatch.setattr(
        "descend.optim.engine.arena_manager.ArenaManager.step_matrices", lambda self, tasks, settings: tasks
    )


def launches(step: Any) -> int:
    """Operations of a step that compute something: neither views nor what reads a number."""
    found: list[str] = []

    def seen(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        views = any(x.alias_info is not None and not x.alias_info.is_write for x in operator_schema(function).returns)
        if not views and "scalar_dense" not in str(function) and str(function).startswith("aten"):
            found.append(str(function))
        return function(*args, **kwargs)

    with dispatch_mode(seen):
        step()
    return len(found)


def with_gradients(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=draw)
    return params


def steady(optimizer: torch.optim.Optimizer) -> int:
    """Operations of a step after the first ones."""
    for _ in range(3):
        optimizer.step()
    return launches(optimizer.step)


MATRICES = [*[(4, 4)] * 16, *[(6, 4), (4, 6)] * 4]
# Convolutions of two sizes with the vectors of norms between, each shape many times, and a last layer.
CONVOLUTIONS: list[tuple[int, ...]] = [(4, 3, 3, 3), (4,), (4,), (8, 4, 1, 1), (8,), (8,)] * 8 + [(5, 8), (5,)]


@pytest.mark.usefixtures("stacks", "no_kernels")
@pytest.mark.parametrize("shapes", [MATRICES, CONVOLUTIONS], ids=["matrices", "convolutions"])
def test_adafactor_takes_fewer_operations_than_lists_of_torch(shapes: list[tuple[int, ...]]) -> None:
    ours = Optimizer(with_gradients(shapes), Adafactor(), lr=1e-2, runner="blocks", on_nonfinite="allow")
    theirs = torch.optim.Adafactor(with_gradients(shapes), foreach=True)
    assert 2 * steady(ours) <= steady(theirs)


@pytest.mark.usefixtures("stacks")
def test_muon_takes_the_operations_of_one_matrix_for_each_stack() -> None:
    """torch's Muon launches 23 a matrix; of three stacks each has 15 products, and lists share the rest."""
    ours = Optimizer(with_gradients(MATRICES), Muon(bfloat16=True), lr=1e-2, runner="blocks", on_nonfinite="allow")
    theirs = torch.optim.Muon(with_gradients(MATRICES))
    per_matrix = steady(theirs) / len(MATRICES)
    assert steady(ours) <= 3.25 * per_matrix


@pytest.mark.usefixtures("stacks")
def test_the_number_of_tensors_costs_no_operations() -> None:
    """What repeats a step of SOAP does not depend on how many tensors a stack has, nor is a refresh recorded twice."""
    counts: list[list[int]] = []
    for height in (2, 9):
        ours = Optimizer(
            with_gradients([(4, 4)] * height), SOAP(frequency=3), lr=1e-2, runner="blocks", on_nonfinite="allow"
        )
        for _ in range(4):
            ours.step()
        counts.append([launches(ours.step) for _ in range(6)])
    assert counts[0] == counts[1]
    assert counts[0][:3] == counts[0][3:]


def changed_on_the_way(rule: Rule, runner: str, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Two groups, one with everything set; a constant and a rate change, a tensor is frozen, gradients are missing."""
    draw = torch.Generator().manual_seed(3)
    params = [nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64)) for shape in shapes]
    # Memory in another order.
    params += [nn.Parameter(torch.randn(5, 5, generator=draw, dtype=torch.float64).t()) for _ in range(2)]
    more: dict[str, Any] = {"weight_decay": 0.1, "rescale_grad": 0.5, "clip_value": 1.0, "maximize": True}
    ours = Optimizer(
        [{"params": params[::2]}, {"params": params[1::2], **more}], rule, lr=lambda n: 1e-2 / (1 + n), runner=runner
    )
    for step in range(8):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64) if (i + step) % 5 else None
        if step == 4:
            name = "d" if isinstance(rule, Adafactor) else "eps"
            ours.param_groups[1][name] = 0.125
            params[0].requires_grad_(False)
        ours.step()
    held = [x for p in params for x in ours.state[p].values() if isinstance(x, Tensor) and not isinstance(rule, SOAP)]
    return [x.detach().clone() for x in (*params, *held)]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("rule", [Adafactor(), Muon(), SOAP(frequency=3)], ids=lambda rule: type(rule).__name__)
def test_groups_and_changes_mean_what_they_mean_to_one_tensor(rule: Rule, stacks: list[int]) -> None:
    shapes: list[tuple[int, ...]] = [(5, 5), (7,), (), (1,), (5, 5), (7,), (5, 5)]
    if not isinstance(rule, SOAP):  # whose bases are arbitrary where g gᵀ is singular
        shapes += [(2, 3, 4, 4), (3, 1), (2, 3, 4, 4)]
    expected = changed_on_the_way(rule, "plain", shapes)
    assert stacks == []
    for one, other in zip(changed_on_the_way(rule, "blocks", shapes), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert stacks


@pytest.mark.usefixtures("stacks", "no_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_and_state_are_written_where_they_are(dtype: torch.dtype) -> None:
    params = [nn.Parameter(torch.ones(size, dtype=dtype)) for size in [(4, 4), (4, 4), (3,)]]
    ours = Optimizer(params, Adafactor(), lr=1e-2, runner="blocks")
    held: list[list[tuple[Tensor, int, int]]] = []
    for _ in range(3):
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        ours.step()
        entries = [x for p in params for name, x in ours.state[p].items() if name != "step"]
        held.append([(x, x.data_ptr(), version_counter(x)) for x in (*params, *entries)])
    for before, after in zip(held[1], held[2], strict=True):
        assert after[0] is before[0]
        assert after[1] == before[1]
        assert after[2] > before[2]
    assert [float(ours.state[p]["step"]) for p in params] == [3.0] * 3


@dataclass(frozen=True)
class OfTheStep(Rule):
    """A rule of a user that takes the step as a number of Python, as rules could always do."""

    whole_tensor = True

    def direction(self, g: Tensor, p: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return 0.5 * p + 0.25 * g.roll(int(t), -1) * (1.0 + int(t)), None


@pytest.mark.usefixtures("stacks", "no_kernels")
@pytest.mark.parametrize(
    "rule", [Adafactor(), Muon(), SOAP(frequency=3), OfTheStep()], ids=lambda rule: type(rule).__name__
)
def test_a_step_that_records_gives_the_bits_of_one_that_repeats(rule: Rule) -> None:
    """So a run that goes on from a checkpoint gets the bits of the one that never stopped."""
    first = stepped(rule, "blocks", torch.float32)
    assert all(map(torch.equal, stepped(rule, "blocks", torch.float32), first))
    batched._recordings.clear()
    batched.lockstep.cache_clear()
    assert all(map(torch.equal, stepped(rule, "blocks", torch.float32), first))


def test_a_text_that_asks_for_the_step_is_used_each_time(stacks: list[int]) -> None:
    for one, other in zip(stepped(OfTheStep(), "blocks"), stepped(OfTheStep(), "plain"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert stacks
