"""Rules with means over rows and columns: kernels, NumPy and the reference update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

import descend.optim
from descend.optim.engine import matrices as engine
from descend.optim.engine.matrices import MatrixUpdates
from descend.optim.engine.matrix_evaluation import TILE
from descend.optim.rules import Muon
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# Less than a tile and more than two, one row, one column, several matrices, and enough for several threads.
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


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(rule: Rule, runner: str, dtype: torch.dtype = torch.float32, steps: int = 3) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in SHAPES]
    params.append(torch.nn.Parameter(torch.randn(40, 30, generator=random).to(dtype).t()))
    ours = descend.optim.Optimizer(params, rule, lr=0.1, weight_decay=0.1, runner=runner)
    for step in range(steps):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(dtype)
            p.grad = None if (i + step) % 4 == 0 else g.t().contiguous().t() if g.ndim == 2 and step == 1 else g
        ours.step()
    assert ours.is_compiled == (runner == "compiled")
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
def test_kernels_have_the_bits_of_numpy_for_any_number_of_threads(dtype: torch.dtype, threads: None) -> None:
    expected = trained(descend.optim.rules.Adafactor(), "blocks", dtype)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found = trained(descend.optim.rules.Adafactor(), "compiled", dtype)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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
    plain, blocks, compiled = (matrices(Centered(), runner) for runner in ("plain", "blocks", "compiled"))
    torch.testing.assert_close(compiled, plain, rtol=1e-11, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(blocks, compiled, strict=True))


@dataclass(frozen=True)
class Normed(Rule):
    """A rule that asks for a mean and does not use it."""

    def direction(
        self, g: Tensor, norm: Callable[[Tensor], Tensor], row_mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, None]:
        return g / norm(g), None


@needs_compiler
def test_sums_have_one_order_where_no_value_is_of_a_row_or_a_column() -> None:
    new: list[Tensor] = []
    for runner in ("blocks", "compiled"):
        p = torch.nn.Parameter(torch.zeros(999, 3, 3))
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
        descend.optim.Optimizer([p], Normed(), lr=1.0, runner=runner).step()
        new.append(p.detach())
    assert torch.equal(*new)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_a_vector_has_no_rows(runner: str) -> None:
    """What asks for means of vectors is not traced; its text then fails as torch does."""
    p = torch.nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    with pytest.raises((IndexError, RuntimeError)):
        descend.optim.Optimizer([p], Centered(), lr=0.1, runner=runner).step()


def test_a_step_of_adafactor_is_that_of_its_equations() -> None:
    random = np.random.default_rng(0)
    w, g = random.normal(size=(200, 130)), random.normal(size=(200, 130))
    p = torch.nn.Parameter(torch.tensor(w))
    p.grad = torch.tensor(g)
    descend.optim.Adafactor([p], lr=0.5, weight_decay=0.0, runner="blocks").step()
    V = (g**2).mean(1, keepdims=True) * (g**2).mean(0) / (g**2).mean()
    u = g / np.sqrt(V)
    expected = w - np.sqrt((w**2).mean()) * 0.5 * u / max(1.0, np.sqrt((u**2).mean()))
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


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
    assert MatrixUpdates.of([]).batches == []


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


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors NumPy has updated together, each time."""
    found: list[int] = []
    evaluate = engine.evaluate

    def spy(made: Any, tensors: Any, shape: tuple[int, ...], known: Any, memory: Any) -> None:
        found.append(shape[0])
        evaluate(made, tensors, shape, known, memory)

    monkeypatch.setattr(engine, "evaluate", spy)
    return found


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


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("limit", [1, 1000, 2**17])
def test_stacks_have_the_bits_of_kernels(
    dtype: torch.dtype, limit: int, stacks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STACK_ELEMENTS", limit)
    rules = descend.optim.rules.Adafactor(), descend.optim.rules.Adafactor(d=0.5, beta2_decay=-0.6, eps1=0.01)
    found = many(*rules, "blocks", dtype)
    largest = {1: 1, 1000: 5, 2**17: 5}[limit]  # of nine tensors, those of the first group
    assert max(stacks) == largest
    assert 1 in stacks
    expected = many(*rules, "compiled", dtype)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_compiler
def test_stacks_of_a_rule_of_ones_own_have_the_bits_of_its_kernel(stacks: list[int]) -> None:
    shapes = [shape for shape in ALIKE if len(shape) > 1]
    found = many(Centered(), Centered(0.5), "blocks", shapes=shapes)
    assert max(stacks) == 5
    expected = many(Centered(), Centered(0.5), "compiled", shapes=shapes)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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


def test_a_tensor_of_a_stack_has_the_bits_that_it_has_alone(stacks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is computed, and whether or not a kernel could."""
    shapes = [shape for shape in ALIKE if len(shape) > 1]
    found = many(Bounded(), Bounded(1.5), "blocks", shapes=shapes)
    assert max(stacks) == 5
    monkeypatch.setattr(engine, "STACK_ELEMENTS", 1)
    stacks.clear()
    alone = many(Bounded(), Bounded(1.5), "blocks", shapes=shapes)
    assert set(stacks) == {1}
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
    torch.testing.assert_close(found, many(Bounded(), Bounded(1.5), "plain", shapes=shapes), rtol=1e-4, atol=1e-5)


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
def test_sums_of_negative_zeros_are_zeros_of_the_kernels_sign() -> None:
    """A sum begins with 0, so it is no negative zero where all its terms are."""
    found, expected = negative_zeros("blocks"), negative_zeros("compiled")
    at = Means._fields.index("clamped")  # NumPy's bounds leave a zero its sign
    of_sums = [i for i in range(len(found)) if i % len(Means._fields) != at]
    assert [found[i] for i in of_sums] == [expected[i] for i in of_sums]
    assert not any(any(found[i]) for i in of_sums)


def test_zeros_of_a_stack_have_the_sign_that_they_have_alone(
    stacks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = negative_zeros("blocks")
    assert max(stacks) == 3
    monkeypatch.setattr(engine, "STACK_ELEMENTS", 1)
    assert found == negative_zeros("blocks")


def test_a_large_tensor_is_updated_where_it_is(stacks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STACK_ELEMENTS", 150)
    params = [torch.nn.Parameter(torch.ones(s)) for s in [(5, 7), (5, 7), (20, 30), (20, 30)]]
    for p in params:
        p.grad = torch.ones_like(p)
    ours = descend.optim.Adafactor(params, runner="blocks")
    ours.step()
    places = [x.data_ptr() for p in params for x in (p, *ours.state[p].values())]
    ours.step()
    assert places == [x.data_ptr() for p in params for x in (p, *ours.state[p].values())]
    assert sorted(stacks) == [1, 1, 1, 1, 2, 2]
    assert torch.equal(params[0], params[1])
    assert torch.equal(params[2], params[3])
