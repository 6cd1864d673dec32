"""Recorded updates in memory that is used again, beside the texts themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from descend.optim.engine import batched, buffered, cpu_stacks
from descend.optim.optimizer import Optimizer
from descend.optim.rules import SOAP, GroupAdaGrad, Muon, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
SHAPES = [(9, 9), (7, 12), (12, 7), (5, 3, 2, 2), (6,), (40, 40)]


class TwoState(NamedTuple):
    """Two matrices that change places at each step."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Exchanging(Rule):
    """A rule whose text would be wrong if a new entry were written over one that is still read."""

    whole_tensor = True

    def init(self, p: Tensor) -> TwoState:
        return TwoState(torch.zeros_like(p), torch.ones_like(p))

    def update(self, g: Tensor, p: Tensor, s: TwoState) -> tuple[Tensor, TwoState]:
        x = g.reshape(g.shape[0], -1)
        y = (x @ x.mT @ x).reshape(g.shape)
        return p - 0.01 * (y + s.a * p), TwoState(s.b + y, s.a * 0.5)


def trained(
    rule: Rule,
    runner: str,
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    steps: int = 6,
    *,
    transposed: bool = False,
) -> list[Tensor]:
    """Weights and state after some steps; `transposed` gradients have their dimensions in the opposite order."""
    draw = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in shapes]
    ours = Optimizer(params, rule, lr=1e-2, runner=runner, weight_decay=0.1, decay="decoupled")
    for _ in range(steps):
        for p in params:
            g = torch.randn(p.shape[::-1] if transposed else p.shape, generator=draw).to(dtype)
            p.grad = g.permute(*range(p.ndim)[::-1]) if transposed else g
        ours.step()
    return [x.detach() for p in params for x in (p, *ours.state[p].values())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "rule", [Muon(), Muon(nesterov=False, bfloat16=True), SOAP(frequency=2), Exchanging()], ids=str
)
def test_single_tensors_get_the_bits_of_the_text(rule: Rule, dtype: torch.dtype) -> None:
    expected = trained(rule, "plain", SHAPES, dtype)
    assert all(map(torch.equal, trained(rule, "blocks", SHAPES, dtype), expected))


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each stack has that is updated."""
    found: list[int] = []
    together = cpu_stacks._Step._together

    def seen(self: cpu_stacks._Step, tasks: list[cpu_stacks.TensorUpdate], recording: object) -> None:
        found.append(len(tasks))
        together(self, tasks, recording)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(cpu_stacks._Step, "_together", seen)
    return found


@pytest.mark.parametrize("rule", [Muon(), Muon(nesterov=False), Exchanging()], ids=str)
def test_stacks_get_what_single_tensors_get(rule: Rule, heights: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_stacks, "STACK_ELEMENTS", 6 * 84)
    shapes = [(7, 12)] * 9 + [(12, 7)] * 4
    found = trained(rule, "blocks", shapes, torch.float64, transposed=True)
    assert heights == [4, 5, 4] * 6
    for one, other in zip(found, trained(rule, "plain", shapes, torch.float64, transposed=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", [GroupAdaGrad(), SOAP()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_small_tensors_of_one_shape_are_stacked_without_a_product(
    rule: Rule, dtype: torch.dtype, heights: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_stacks, "STACK_ELEMENTS", 6 * 40)
    monkeypatch.setattr(cpu_stacks, "SMALL", 40)
    shapes = [(40,)] * 9 + [(7,)] * 3 + [(41,)] * 5  # two stacks, too few for one, too large for one
    found = trained(rule, "blocks", shapes, dtype)
    assert heights == [4, 5] * 6
    # A root of torch's depends on where in memory an element is.
    close = {"rtol": 1e-12, "atol": 1e-14} if dtype is torch.float64 else {}
    for one, other in zip(found, trained(rule, "plain", shapes, dtype), strict=True):
        torch.testing.assert_close(one, other, **close)


@dataclass(frozen=True)
class OfTheStep(Rule):
    """Multiplies matrices, and takes the step or the sum of the gradient as a number of Python."""

    whole_tensor = True
    of_gradient: bool = False

    def direction(self, g: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return (float(g.sum()) if self.of_gradient else 1.0 / int(t)) * (g @ g.mT @ g), None


@pytest.mark.parametrize("of_gradient", [False, True])
def test_a_text_that_is_another_one_at_each_step_is_recorded_once(
    of_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[object] = []
    record = batched.record
    monkeypatch.setattr(batched, "record", lambda *args, **named: recorded.append(args) or record(*args, **named))
    cpu_stacks._left_to_plain.clear()
    rule, shapes = OfTheStep(of_gradient=of_gradient), [(9, 9)] * 6
    found = trained(rule, "blocks", shapes, torch.float32)
    assert len(recorded) == 1
    assert all(map(torch.equal, found, trained(rule, "plain", shapes, torch.float32)))


@dataclass(frozen=True)
class Drawing(Rule):
    """Draws from torch's own generator; as a product or not."""

    whole_tensor = True
    multiplies: bool = False

    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        d = g + torch.rand_like(g)
        return (d @ d.mT @ d if self.multiplies else d), None


@pytest.mark.parametrize("multiplies", [False, True])
def test_a_text_that_draws_random_numbers_draws_those_of_plain(multiplies: bool) -> None:
    found: list[list[Tensor]] = []
    for runner in ("plain", "blocks"):
        torch.manual_seed(3)
        found.append(trained(Drawing(multiplies), runner, [(5, 5)] * 6, torch.float32))
    assert all(map(torch.equal, *found))


def test_half_of_a_large_symmetric_product_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    halves: list[int] = []
    halved = buffered._halved

    def seen(line: object, product: object, at: int) -> Callable[[list[object]], None]:
        halves.append(at)
        return halved(line, product, at)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(buffered, "_halved", seen)
    shapes = [(520, 30), (530, 540)]
    found = trained(Muon(), "blocks", shapes, torch.float64, 2)
    assert len(halves) == 10  # A and b A + c A² of each iteration, of the second matrix
    for one, other in zip(found, trained(Muon(), "plain", shapes, torch.float64, 2), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_large_float32_products_round_as_others_do() -> None:
    """Against float64, where oneDNN multiplies and where torch does."""
    exact, *found = (
        trained(Muon(), runner, [(200, 300), (520, 560)], dtype, 1)
        for runner, dtype in (("plain", torch.float64), ("plain", torch.float32), ("blocks", torch.float32))
    )
    errors = [max(float((x - y).abs().max()) for x, y in zip(one, exact, strict=True)) for one in found]
    assert errors[1] <= 4 * errors[0]


class Written(TorchDispatchMode):
    """Notes the strides of the results that products write into memory which they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in PRODUCTS and "out" in kwargs:
            self.strides.append(kwargs["out"].stride())
        return func(*args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(48, 24), (24, 48), (36, 36), (12, 3, 4, 6), (48, 6, 2, 2)], ids=str)
@pytest.mark.parametrize("rule", [Muon(), Muon(bfloat16=True), SOAP(frequency=2), Exchanging()], ids=str)
def test_products_are_written_row_by_row(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Column by column products of stacks in bfloat16 take a hundred times longer."""
    params = [nn.Parameter(torch.randn(shape).to(dtype)) for _ in range(6)]
    ours = Optimizer(params, rule, lr=1e-2, runner="blocks")
    with Written() as written:
        for _ in range(2):
            for p in params:
                p.grad = torch.randn_like(p)
            ours.step()
    assert written.strides, "no product was written into a buffer"
    assert all(columns <= rows for *_, rows, columns in written.strides)


@pytest.mark.parametrize("shape", [(48, 24), (24, 48)], ids=str)
def test_tall_and_wide_stacks_get_what_single_matrices_get_in_bfloat16(shape: tuple[int, ...]) -> None:
    rule = Muon(bfloat16=True)
    found, expected = (trained(rule, runner, [shape] * 6, torch.float32, 3) for runner in ("blocks", "plain"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=3e-3)  # lr is 0.01, and bfloat16 has 8 bits


def test_results_are_written_into_memory_that_is_used_again() -> None:
    """Of the values of ten products and what surrounds them, a few are held at a time."""
    rule, p = Muon(ns_steps=20), nn.Parameter(torch.ones(64, 64))
    p.grad = torch.ones(64, 64)
    cpu_stacks._buffered.cache_clear()
    made: list[buffered.Buffered] = []

    class Seen(buffered.Buffered):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # pyright: ignore[reportArgumentType]
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_stacks, "Buffered", Seen)
        Optimizer([p], rule, lr=1e-2, runner="blocks").step()
    cpu_stacks._buffered.cache_clear()
    assert 0 < made[0].bytes <= 5 * p.numel() * 4
