"""Rules with means over rows and columns: kernels agree with the reference update, and bits with no number of threads.

Their addresses are kept from step to step: what is done to tensors between steps counts as it always does.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

import descend.optim
from descend.errors import NumericalError, RuleError
from descend.optim.compiler.cache import KernelCompiler
from descend.optim.engine.matrices import batches_of
from descend.optim.rules import Muon
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Less than a tile and more than two, one row, one column, several matrices, and enough for several threads.
TILE = 64  # rows, as in matrix.h
TILED = [(), (3,), (7000,), (130, 200), (3, 4, 3, 3), (90, 1), (1, 90), (TILE, TILE + 1), (3, 2, 70, 130), (400, 600)]
# Small matrices together: whole packs and some more, fewer than one, many widths, and enough for several threads.
PACKED = [
    (8, 17, 3, 3),
    (16, 1, 1),
    (300, 1, 1),
    (5, 4, 2, 7),
    (65, 7, 1),
    (70, 1, 5),
    (20, 9, 4),
    (40, 8, 8),
    (256, 64, 3, 3),
]
SHAPES = [*TILED, *PACKED]


def trained(
    rule: Rule, runner: str, dtype: torch.dtype = torch.float32, steps: int = 3, compiled: bool | None = None
) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in SHAPES]
    params.append(torch.nn.Parameter(torch.randn(40, 30, generator=random).to(dtype).t()))
    ours = descend.optim.Optimizer(params, rule, lr=0.1, weight_decay=0.1, runner=runner)
    for step in range(steps):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(dtype)
            p.grad = None if (i + step) % 4 == 0 else g.t().contiguous().t() if g.ndim == 2 and step == 1 else g
        ours.step()
    assert ours.is_compiled == (runner == "compiled" if compiled is None else compiled)
    state = [x for p in params for name, x in sorted(ours.state[p].items()) if name != "step"]
    assert [int(ours.state[p]["step"]) for p in params] == [
        sum((i + step) % 4 != 0 for step in range(steps)) for i in range(len(params))
    ]
    return [p.detach().clone() for p in params] + [x.clone() for x in state]


class Scaled(NamedTuple):
    m: Tensor  # shaped like p
    row: Tensor
    each: Tensor  # one number a matrix


@dataclass(frozen=True)
class Centered(Rule):
    """A rule of one's own: the gradient without its row and column means, over a norm, with two numbers a matrix."""

    beta: float = 0.9

    def init(self, p: Tensor) -> Scaled:
        row = p.new_zeros((*p.shape[:-1], 1)) if p.ndim > 1 else torch.zeros_like(p)
        each = p.new_zeros((*p.shape[:-2], 1, 1)) if p.ndim > 1 else torch.zeros_like(p)
        return Scaled(torch.zeros_like(p), row, each)

    def direction(
        self,
        g: Tensor,
        p: Tensor,
        s: Scaled,
        size: Tensor,
        norm: Callable[[Tensor], Tensor],
        total: Callable[[Tensor], Tensor],
        row_mean: Callable[[Tensor], Tensor],
        column_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Scaled]:
        row = self.beta * s.row + (1 - self.beta) * row_mean(g)
        each = column_mean(row)
        centered = g - row - column_mean(g) + torch.where(each > 0, each, s.each)
        m = self.beta * s.m + centered
        d = m / (norm(m) + 1e-3) + 0.01 * row_mean(column_mean(p)) + total(p) / size
        return d, Scaled(m, row, each)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_no_bit_depends_on_the_number_of_threads(dtype: torch.dtype, threads: None) -> None:
    runs: list[list[Tensor]] = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        runs.append(trained(descend.optim.rules.Adafactor(), "compiled", dtype))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


@needs_compiler
def test_the_first_step_waits_for_the_kernel() -> None:
    """So a run has the same bits whether a kernel was compiled before it or not."""
    runs = [trained(descend.optim.rules.Adafactor(), runner, compiled=True) for runner in ("auto", "compiled")]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_without_a_compiler_they_get_the_reference_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("descend.optim.engine.arena_manager._compiler", KernelCompiler())
    monkeypatch.setattr("descend.optim.compiler.cache.compiler", lambda: None)
    monkeypatch.setattr(KernelCompiler, "_stored", lambda *_: None)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler is on the path; this optimizer runs eagerly"):
        auto = trained(descend.optim.rules.Adafactor(), "auto", torch.float64, compiled=False)
    plain = trained(descend.optim.rules.Adafactor(), "plain", torch.float64)
    torch.testing.assert_close(auto, plain, rtol=1e-12, atol=1e-14)
    with pytest.raises(RuleError, match='runner="compiled" is not available here'):
        trained(descend.optim.rules.Adafactor(), "compiled")


@pytest.mark.parametrize("runner", ["blocks", pytest.param("compiled", marks=needs_compiler)])
def test_runners_agree_with_the_reference_update(runner: str) -> None:
    torch.testing.assert_close(
        trained(descend.optim.rules.Adafactor(), runner, torch.float64),
        trained(descend.optim.rules.Adafactor(), "plain", torch.float64),
        rtol=1e-12,
        atol=1e-14,
    )


def matrices(rule: Rule, runner: str) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = [(130, 200), (5, 70, 3), (2, 3, 4, 65), (400, 600), (10, 13, 3, 5), (700, 1, 1), (64, 1, 2)]
    params = [torch.nn.Parameter(torch.randn(s, generator=random, dtype=torch.float64)) for s in shapes]
    ours = descend.optim.Optimizer(params, rule, lr=0.1, runner=runner)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64)
        ours.step()
    assert ours.is_compiled == (runner == "compiled")
    return [p.detach().clone() for p in params] + [ours.state[p]["each"] for p in params]


@needs_compiler
def test_a_rule_of_ones_own_is_compiled(threads: None) -> None:
    torch.set_num_threads(2)
    plain, compiled = (matrices(Centered(), runner) for runner in ("plain", "compiled"))
    torch.testing.assert_close(compiled, plain, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_a_vector_has_no_rows(runner: str) -> None:
    """What asks for means of vectors is not traced; its text then fails as torch does."""
    p = torch.nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    with pytest.raises((IndexError, RuntimeError)):
        descend.optim.Optimizer([p], Centered(), lr=0.1, runner=runner).step()


@pytest.mark.parametrize("runner", ["plain", pytest.param("compiled", marks=needs_compiler)])
def test_a_step_of_adafactor_is_that_of_its_equations(runner: str) -> None:
    random = np.random.default_rng(0)
    w, g = random.normal(size=(200, 130)), random.normal(size=(200, 130))
    p = torch.nn.Parameter(torch.tensor(w))
    p.grad = torch.tensor(g)
    descend.optim.Adafactor([p], lr=0.5, weight_decay=0.0, runner=runner).step()
    V = (g**2).mean(1, keepdims=True) * (g**2).mean(0) / (g**2).mean()
    u = g / np.sqrt(V)
    expected = w - np.sqrt((w**2).mean()) * 0.5 * u / max(1.0, np.sqrt((u**2).mean()))
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-15)


def test_groups_with_other_constants_share_a_kernel() -> None:
    params = [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    for p in params:
        p.grad = torch.ones_like(p)
    groups = [{"params": [params[0]], "d": 1.0}, {"params": [params[1]], "d": 0.5, "lr": 0.02}]
    ours, alone = descend.optim.Adafactor(groups, runner="blocks"), []
    ours.step()
    for options in ({"d": 1.0}, {"d": 0.5, "lr": 0.02}):
        alone.append(torch.nn.Parameter(torch.ones(4, 3)))
        alone[-1].grad = torch.ones(4, 3)
        descend.optim.Adafactor([alone[-1]], runner="blocks", **options).step()
    assert all(torch.equal(a, b) for a, b in zip(params, alone, strict=True))


def test_rules_without_such_means_are_left_to_others() -> None:
    p = torch.nn.Parameter(torch.ones(4, 3))
    p.grad = torch.ones_like(p)
    ours = descend.optim.Optimizer([p], Muon(), lr=0.1)
    ours.step()
    assert not ours.is_compiled
    assert batches_of([]) == ([], [])


def test_a_graph_over_the_old_weights_is_an_error() -> None:
    p = torch.nn.Parameter(torch.ones(4, 3))
    y = (p * p).sum()
    p.grad = torch.ones_like(p)
    descend.optim.Adafactor([p], runner="blocks").step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# Several tensors of each shape: vectors, matrices that end within a block or a tile, and many small ones in packs.
ALIKE = [
    (),
    (1,),
    (3,),
    (64,),
    (130,),
    (7, 5),
    (1, 6),
    (90, 1),
    (20, 200),
    (130, 70),
    (3, 66, 2),
    (17, 3, 3),
    (9, 2, 2, 3),
    (5, 130, 3),
]


def many(
    first: Rule,
    second: Rule,
    runner: str,
    dtype: torch.dtype = torch.float32,
    shapes: Sequence[tuple[int, ...]] = ALIKE,
) -> list[Tensor]:
    """Weights and state of two groups after three steps, of which each tensor takes part in two or three."""
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s, generator=random).to(dtype)) for s in shapes for _ in range(9)]
    params += [torch.nn.Parameter(torch.randn(40, 30, generator=random).to(dtype).t()) for _ in range(3)]
    groups = [{"params": params[::2], "lr": 0.1}, {"params": params[1::2], "lr": 0.03, "rule": second}]
    ours = descend.optim.Optimizer(groups, first, lr=0.1, weight_decay=0.1, runner=runner)
    for step in range(3):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(dtype)
            if i % 7 == 0 and dtype is torch.float32:
                g = torch.complex(torch.zeros_like(g), g).conj().imag  # a view of the negative of what it holds
            if i % 5 == 0:
                g = g.mT.contiguous().mT if g.ndim > 1 else g.expand(2, *g.shape)[0]
            p.grad = None if step and (i + step) % 4 == 0 else g
        ours.step()
    assert ours.is_compiled == (runner == "compiled")
    return [p.detach().clone() for p in params] + [x.clone() for p in params for x in ours.state[p].values()]


class Last(NamedTuple):
    g: Tensor


@dataclass(frozen=True)
class Bounded(Rule):
    """Bounds that follow from norms, numbers that are true or false, and functions that IEEE does not round."""

    most: float = 2.0

    def init(self, p: Tensor) -> Last:
        return Last(torch.zeros_like(p))

    def direction(
        self,
        g: Tensor,
        p: Tensor,
        s: Last,
        norm: Callable[[Tensor], Tensor],
        total: Callable[[Tensor], Tensor],
        row_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Last]:
        size = norm(g)
        after = Last(0.5 * s.g + g)  # the old one is read later
        bound = torch.where(total(p) > 0, size.clamp(max=self.most), 0.5 * size) - 1.0
        d = torch.maximum(g.clamp(min=-size, max=bound), s.g) + g.exp() / (2 + bound)
        d = d + torch.sigmoid(p) + torch.where(total(g) > 0, g.tanh(), g**3) + 1e-4 * row_mean(p) * total(p > 0)
        return d * (d.abs() ** 0.3) + after.g, after


@needs_compiler
@pytest.mark.parametrize(
    ("rules", "shapes"),
    [
        ((descend.optim.rules.Adafactor(), descend.optim.rules.Adafactor(d=0.5, beta2_decay=-0.6, eps1=0.01)), ALIKE),
        ((Centered(), Centered(0.5)), [shape for shape in ALIKE if len(shape) > 1]),
    ],
    ids=["Adafactor", "Centered"],
)
def test_groups_of_many_tensors_agree_with_the_reference_update(
    rules: tuple[Rule, Rule], shapes: list[tuple[int, ...]]
) -> None:
    plain, compiled = (many(*rules, runner, torch.float64, shapes) for runner in ("plain", "compiled"))
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-11)


def test_what_no_kernel_computes_gets_the_reference_update() -> None:
    """Numbers that follow from a norm by an exponential, say: whatever the runner."""
    shapes = [shape for shape in ALIKE if len(shape) > 1]
    found, expected = (many(Bounded(), Bounded(1.5), runner, torch.float64, shapes) for runner in ("blocks", "plain"))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


class Means(NamedTuple):
    row: Tensor
    column: Tensor
    each: Tensor  # one number a matrix
    clamped: Tensor


@dataclass(frozen=True)
class Mean(Rule):
    """The means alone, and the gradient within its norm."""

    def init(self, p: Tensor) -> Means:
        row = p.new_zeros((*p.shape[:-1], 1))
        return Means(row, p.new_zeros((*p.shape[:-2], 1, p.shape[-1])), row[..., :1, :].clone(), torch.zeros_like(p))

    def direction(
        self,
        g: Tensor,
        s: Means,
        norm: Callable[[Tensor], Tensor],
        row_mean: Callable[[Tensor], Tensor],
        column_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Means]:
        row = row_mean(g)
        return g, Means(row, column_mean(g), column_mean(-row), g.clamp(min=norm(g), max=norm(g) + 1.0))


def negative_zeros(runner: str) -> list[list[bool]]:
    """The signs of the state after a step with gradients of negative zeros."""
    params = [torch.nn.Parameter(torch.zeros(s)) for s in [(3, 64)] * 3 + [(70, 1), (20, 3, 3), (1, 5), (1, 5), (1, 1)]]
    for p in params:
        p.grad = torch.full_like(p, -0.0)
    ours = descend.optim.Optimizer(params, Mean(), lr=1.0, runner=runner)
    ours.step()
    return [ours.state[p][name].signbit().reshape(-1).tolist() for p in params for name in Means._fields]


@needs_compiler
def test_sums_of_negative_zeros_are_zeros_without_a_sign() -> None:
    """A sum begins with 0, so it is no negative zero where all its terms are."""
    signs = negative_zeros("compiled")
    at = Means._fields.index("clamped")
    assert not any(any(sign) for i, sign in enumerate(signs) if i % len(Means._fields) != at)


@needs_compiler
def test_tensors_stay_where_they_are() -> None:
    params = [torch.nn.Parameter(torch.ones(s)) for s in [(5, 7), (5, 7), (20, 30), (20, 30)]]
    for p in params:
        p.grad = torch.ones_like(p)
    ours = descend.optim.Adafactor(params, runner="compiled")
    ours.step()
    places = [x.data_ptr() for p in params for x in (p, *ours.state[p].values())]
    ours.step()
    assert places == [x.data_ptr() for p in params for x in (p, *ours.state[p].values())]
    assert torch.equal(params[0], params[1])
    assert torch.equal(params[2], params[3])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_order_in_memory_changes_no_bit(dtype: torch.dtype) -> None:
    """Convolutions in the order channels_last, and transposed matrices, with gradients in either order."""
    random = torch.Generator().manual_seed(0)
    values = [torch.randn(s, generator=random).to(dtype) for s in [(12, 20, 3, 3), (40, 30)]]
    orders = [torch.contiguous_format, torch.channels_last]
    runs: list[list[Tensor]] = []
    for order in orders:
        last = order is torch.channels_last
        params = [torch.nn.Parameter(values[0].clone(memory_format=order))]
        params.append(torch.nn.Parameter(values[1].t().contiguous().t() if last else values[1].clone()))
        ours = descend.optim.Adafactor(params, lr=0.1, runner="compiled")
        random.manual_seed(1)
        for step in range(4):
            for p in params:
                g = torch.randn(p.shape, generator=random).to(dtype)
                p.grad = torch.empty_like(p).copy_(g) if step % 2 else g
            if step == 2:
                params[0].grad = None
            ours.step()
        assert ours.is_compiled
        runs.append([x.detach() for p in params for x in (p, *ours.state[p].values())])
        assert [p.is_contiguous() for p in params] == [not last] * 2
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


HELD = [(30, 20), (7,), (), (20, 3, 3, 2), (64, 65), (5, 1), (7,), (30, 20)]


class Run:
    """An optimizer of two groups, whose gradients are a function of the step."""

    def __init__(self, runner: str, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.params = [torch.nn.Parameter(self.drawn(shape).to(dtype)) for shape in HELD]
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


def agree(change: Callable[[Run], None], dtype: torch.dtype = torch.float64, **options: Any) -> Run:
    """Steps, a change and more steps have the values of the reference update, which handles each tensor by itself."""
    runs = [Run(runner, dtype, **options) for runner in ("plain", "compiled")]
    for run in runs:
        for _ in range(2):
            run.step()
        assert run.held == (len(HELD) if run.runner == "compiled" else 0)
        assert run.ours.is_compiled == (run.runner == "compiled")
        change(run)
        for _ in range(2):
            run.step()
    expected, found = (run.values() for run in runs)
    assert len(expected) == len(found) > len(HELD)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 2e-2)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert runs[1].held == len(HELD)
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
    assert not any(arena.copies for arena in run.ours._arenas.matrices)


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


@needs_compiler
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_changed_between_steps_counts(change: Callable[[Run], None], threads: None) -> None:
    agree(change)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("change", [nothing, moved, written, absent, lie_otherwise], ids=lambda change: change.__name__)
def test_in_other_precisions(change: Callable[[Run], None], dtype: torch.dtype) -> None:
    agree(change, dtype)


@needs_compiler
def test_options_and_schedules_hold() -> None:
    rates: list[int] = []

    def rate(step: int) -> float:
        rates.append(step)
        return 0.1 / (1 + step)

    agree(nothing, lr_mult=0.5, rescale_grad=2.0)
    runs = [Run(runner, torch.float64) for runner in ("plain", "compiled")]
    for run in runs:
        run.ours = descend.optim.Adafactor(run.params, lr=rate, runner=run.runner)
        for _ in range(4):
            run.step()
    torch.testing.assert_close(runs[1].values(), runs[0].values(), rtol=1e-10, atol=1e-11)
    assert set(rates) == {0, 1, 2, 3}


@needs_compiler
def test_python_handles_no_tensor_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("compiled")
    run.step()

    def refused(*args: object) -> None:
        raise AssertionError

    for name in ("arena_manager.batches_of", "arena_manager.tasks_of", "step_inputs.tasks_of"):
        monkeypatch.setattr(f"descend.optim.engine.{name}", refused)
    before = run.values()
    run.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


@needs_compiler
def test_beside_the_arenas_of_other_rules() -> None:
    values: list[list[Tensor]] = []
    for runner in ("plain", "compiled"):
        run = Run(runner, torch.float64)
        groups = [{"params": run.params[:3], "rule": descend.optim.rules.Adam()}, {"params": run.params[3:]}]
        run.ours = descend.optim.Optimizer(groups, descend.optim.rules.Adafactor(), lr=0.1, runner=runner)
        for _ in range(4):
            run.step()
        values.append(run.values())
        assert run.held == (5 if runner == "compiled" else 0)
    torch.testing.assert_close(values[1], values[0], rtol=1e-10, atol=1e-11)


BAD = [float("nan"), float("inf"), -float("inf")]


@needs_compiler
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


@needs_compiler
def test_gradients_that_are_not_finite_are_skipped() -> None:
    run = Run("compiled", on_nonfinite="skip")
    run.step()
    before = run.values()
    run.set_gradients()
    run.params[2].grad = torch.tensor(float("nan"))
    run.ours.step()
    assert (run.ours.updates, run.ours.skipped) == (1, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


@needs_compiler
def test_a_sparse_gradient_is_refused() -> None:
    run = Run("compiled")
    run.step()
    run.set_gradients()
    run.params[0].grad = torch.sparse_coo_tensor([[0]], torch.ones(1, 20), (30, 20))
    before = run.values()
    with pytest.raises(RuleError, match="sparse gradient"):
        run.ours.step()
    assert all(torch.equal(a, b) for a, b in zip(before, run.values(), strict=True))


@needs_compiler
def test_a_graph_over_old_weights_of_a_kernel_is_an_error() -> None:
    run = Run("compiled")
    run.step()
    y = (run.params[0] * run.params[0]).sum()
    run.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@needs_compiler
def test_a_copy_of_the_optimizer_goes_its_own_way() -> None:
    run = Run("compiled")
    run.step()
    other = copy.deepcopy(run)
    run.step()
    assert not torch.equal(run.params[0], other.params[0])
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(run.values(), other.values(), strict=True))
