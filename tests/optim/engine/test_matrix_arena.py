"""Matrices whose addresses are kept from step to step: what is done to them between steps counts as it always does."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from system_needs import needs_compiler

import descend.optim
from descend.errors import NumericalError, RuleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

pytestmark = needs_compiler

SHAPES = [(30, 20), (7,), (), (20, 3, 3, 2), (64, 65), (5, 1), (7,), (30, 20)]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Run:
    """An optimizer of two groups, whose gradients are a function of the step."""

    def __init__(self, runner: str, dtype: torch.dtype = torch.float32, **options: object) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.params = [torch.nn.Parameter(self.drawn(shape).to(dtype)) for shape in SHAPES]
        groups = [{"params": self.params[:4]}, {"params": self.params[4:], "lr": 0.03, "weight_decay": 0.1}]
        self.ours = descend.optim.Adafactor(groups, lr=0.1, runner=runner, **options)
        self.runner = runner

    def drawn(self, shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def set_gradients(self) -> None:
        for p in self.params:
            p.grad = self.drawn(p.shape).to(p.dtype)

    def step(self) -> None:
        self.set_gradients()
        self.ours.step()

    @property
    def held(self) -> int:
        """How many tensors are in arenas."""
        return sum(len(arena.layout.slots) for arena in self.ours._arenas.matrices)

    def values(self) -> list[Tensor]:
        state = [x for p in self.params for _, x in sorted(self.ours.state[p].items())]
        return [x.detach().clone() for x in [*self.params, *state]]


def agree(
    change: Callable[[Run], None],
    dtype: torch.dtype = torch.float32,
    alike: Callable[[Tensor, Tensor], bool] = torch.equal,
    **options: object,
) -> Run:
    """Steps, a change and more steps have the bits that NumPy gets, which looks at each tensor at each step."""
    runs = [Run(runner, dtype, **options) for runner in ("blocks", "compiled")]
    for run in runs:
        for _ in range(2):
            run.step()
        assert run.held == (len(SHAPES) if run.runner == "compiled" else 0)
        assert run.ours.is_compiled == (run.runner == "compiled")
        change(run)
        for _ in range(2):
            run.step()
    expected, found = (run.values() for run in runs)
    assert len(expected) == len(found) > len(SHAPES)
    assert all(alike(a, b) for a, b in zip(expected, found, strict=True))
    assert runs[1].held == len(SHAPES)
    return runs[1]


def nothing(run: Run) -> None:
    pass


def moved(run: Run) -> None:
    for p in run.params[::2]:
        p.data = p.data.clone()


def replaced(run: Run) -> None:
    run.ours.state[run.params[0]]["row"] = torch.full((30, 1), 2.0)


def written(run: Run) -> None:
    run.ours.state[run.params[0]]["column"].mul_(3.0)
    run.params[4].data.add_(1.0)


def count_replaced(run: Run) -> None:
    run.ours.state[run.params[1]]["step"].fill_(7.0)


def emptied(run: Run) -> None:
    run.ours.state[run.params[3]] = {}


def slower(run: Run) -> None:
    run.ours.param_groups[0]["lr"] = 0.01
    run.ours.param_groups[1]["d"] = 0.5


def decayed(run: Run) -> None:
    run.ours.param_groups[0]["weight_decay"] = 0.2


def clipped(run: Run) -> None:
    run.ours.param_groups[1]["clip_value"] = 0.1  # a text that clips is another one


def more_threads(run: Run) -> None:
    torch.set_num_threads(3)


def absent(run: Run) -> None:
    run.set_gradients()
    for p in run.params[1::3]:
        p.grad = None
    run.ours.step()
    run.params[0].grad = None
    run.ours.step()
    for p in run.params:
        p.grad = None
    run.ours.step()


def frozen(run: Run) -> None:
    run.set_gradients()
    run.params[0].requires_grad_(False)
    run.params[5].requires_grad_(False)
    before = run.params[0].detach().clone()
    run.ours.step()
    assert torch.equal(before, run.params[0].detach())
    run.params[0].requires_grad_(True)
    run.params[5].requires_grad_(True)


def lie_otherwise(run: Run) -> None:
    run.set_gradients()
    run.params[0].grad = run.drawn((20, 30)).t().to(run.params[0].dtype)
    run.params[4].grad = torch._neg_view(run.drawn((64, 65)).to(run.params[4].dtype))
    run.params[5].grad = run.drawn((5, 2))[:, :1].to(run.params[5].dtype)
    run.ours.step()
    assert not any(arena._gradients.copies for arena in run.ours._arenas.matrices)


def reloaded(run: Run) -> None:
    saved = copy.deepcopy(run.ours.state_dict())
    run.step()
    run.ours.load_state_dict(saved)


def joined(run: Run) -> None:
    groups = run.ours.param_groups
    groups[0]["params"] += groups.pop()["params"]
    run.ours.regrouped()


CHANGES = [
    nothing,
    moved,
    replaced,
    written,
    count_replaced,
    emptied,
    slower,
    decayed,
    clipped,
    more_threads,
    absent,
    frozen,
    lie_otherwise,
    reloaded,
    joined,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_changed_between_steps_counts(change: Callable[[Run], None]) -> None:
    agree(change)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("change", [nothing, moved, written, absent, lie_otherwise], ids=lambda change: change.__name__)
def test_in_other_precisions(change: Callable[[Run], None], dtype: torch.dtype) -> None:
    agree(change, dtype)


def test_options_and_schedules_hold() -> None:
    rates: list[int] = []

    def rate(step: int) -> float:
        rates.append(step)
        return 0.1 / (1 + step)

    agree(nothing, lr_mult=0.5, rescale_grad=2.0)
    runs = [Run(runner) for runner in ("blocks", "compiled")]
    for run in runs:
        run.ours = descend.optim.Adafactor(run.params, lr=rate, runner=run.runner)
        for _ in range(4):
            run.step()
    assert all(torch.equal(a, b) for a, b in zip(runs[0].values(), runs[1].values(), strict=True))
    assert set(rates) == {0, 1, 2, 3}


def test_python_looks_at_no_tensor_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("compiled")
    run.step()

    def refused(*args: object) -> None:
        raise AssertionError

    for name in ("matrices.MatrixUpdates.of", "arena_manager.tasks_of", "step_inputs.tasks_of"):
        monkeypatch.setattr(f"descend.optim.engine.{name}", refused)
    before = run.values()
    run.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


def test_tensors_that_are_copied_for_a_step_are_not_held() -> None:
    p, q = torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(3, 4).t())
    ours = descend.optim.Adafactor([p, q], runner="compiled")
    for _ in range(3):
        p.grad, q.grad = torch.ones(4, 3), torch.ones(4, 3)
        ours.step()
        assert [slot.param is p for arena in ours._arenas.matrices for slot in arena.layout.slots] == [True]
        assert ours.is_compiled
    assert torch.equal(p, q)


def test_beside_the_arenas_of_other_rules() -> None:
    found: list[list[Tensor]] = []
    for runner in ("blocks", "compiled"):
        run = Run(runner)
        groups = [{"params": run.params[:3], "rule": descend.optim.rules.Adam()}, {"params": run.params[3:]}]
        run.ours = descend.optim.Optimizer(groups, descend.optim.rules.Adafactor(), lr=0.1, runner=runner)
        for _ in range(4):
            run.step()
        found.append(run.values())
        assert run.held == (5 if runner == "compiled" else 0)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


BAD = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("i", "name"), [(0, "group 0, weights 0"), (4, "group 1, weights 0"), (7, "group 1, weights 3")]
)
def test_gradients_that_are_not_finite_are_found(i: int, name: str) -> None:
    run = Run("compiled", on_nonfinite="raise")
    run.step()
    before = run.values()
    for bad, place in zip(BAD, (0, -1, 77), strict=True):
        run.set_gradients()
        grad = run.params[i].grad
        assert grad is not None
        grad.view(-1)[place] = bad
        with pytest.raises(NumericalError, match=f"the gradient of '{name}' is not finite"):
            run.ours.step()
        assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))
    grad.view(-1)[place] = 1e38  # finite
    run.ours.step()
    assert run.ours.updates == 2


def test_gradients_that_are_not_finite_are_skipped() -> None:
    run = Run("compiled", on_nonfinite="skip")
    run.step()
    before = run.values()
    run.set_gradients()
    run.params[2].grad = torch.tensor(float("nan"))
    run.ours.step()
    assert (run.ours.updates, run.ours.skipped) == (1, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


def test_a_sparse_gradient_is_refused() -> None:
    run = Run("compiled")
    run.step()
    run.set_gradients()
    run.params[0].grad = torch.sparse_coo_tensor([[0]], torch.ones(1, 20), (30, 20))
    before = run.values()
    with pytest.raises(RuleError, match="sparse gradient"):
        run.ours.step()
    assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


def test_a_graph_over_the_old_weights_is_an_error() -> None:
    run = Run("compiled")
    run.step()
    y = (run.params[0] * run.params[0]).sum()
    run.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_copy_of_the_optimizer_goes_its_own_way() -> None:
    run = Run("compiled")
    run.step()
    other = copy.deepcopy(run)
    run.step()
    assert not torch.equal(run.params[0], other.params[0])
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(run.values(), other.values(), strict=True))
