"""Compiled kernels on a CPU: the same bits for any number of threads, and gradients of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

import descend.optim
from descend.errors import RuleError
from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.engine.gradient_scan import MANY
from descend.optim.engine.launch import Native
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = needs_compiler

SIZES = [3, 2 * UNIT + 5, BLOCK, 1, UNIT, 100_000, 70]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(runner: str, name: str = "lamb", **options: object) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n, generator=random)) for n in SIZES]
    ours = descend.optim.create(name, params, lr=1e-2, runner=runner, **options)
    for step in range(4):
        for i, p in enumerate(params):
            p.grad = None if (i + step) % 5 == 0 else torch.randn(p.shape, generator=random)
        ours.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {}),
        ("sgld", {}),
        ("lamb", {}),
        ("lamb", {"lower_bound": 1.0, "upper_bound": 60.0, "weight_decay": 0.1}),
        ("lars", {}),
        ("lars", {"momentum_correction": True, "weight_decay": 0.1, "nesterov": True}),
        ("lars", {"ratio_of": "sum", "eps": 1e-3, "clip_inside": 0.5}),
        ("lans", {}),
        ("hypergradientadam", {"weight_decay": 0.1}),
    ],
    ids=str,
)
def test_the_number_of_threads_changes_no_bit(name: str, options: dict[str, object], threads: None) -> None:
    found: list[list[Tensor]] = []
    for count in (1, 2, 3, 7):  # with 7 some have less than one tensor, or nothing
        torch.set_num_threads(count)
        found += [trained("compiled", name, **options), trained("blocks", name, **options)]
        found.append(trained("compiled", name, on_nonfinite="allow", **options))  # without a check that makes sums
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


class Noted(NamedTuple):
    mean: Tensor


@dataclass(frozen=True)
class Root(Rule):
    """Has numbers that C++ and torch may round otherwise, since it takes the root of a norm."""

    def init(self, p: Tensor) -> Noted:
        return Noted(p.new_zeros((), dtype=torch.float64))

    def direction(self, g: Tensor, s: Noted, norm: Callable[[Tensor], Tensor]) -> tuple[Tensor, Noted]:
        root = norm(g).sqrt()
        mean = 0.5 * s.mean + root
        return g / (1 + norm(g / mean)), Noted(mean)


def test_numbers_that_torch_alone_computes_are_computed_between_calls(threads: None) -> None:
    rows: list[list[Tensor]] = []
    for runner in ("compiled", "blocks"):
        random = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n, generator=random)) for n in SIZES]
        ours = descend.optim.Optimizer(params, Root(), lr=0.1, runner=runner)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=random)
            ours.step()
        native = ours._arenas.arenas[0].native
        assert native is None if runner == "blocks" else len(native.calls) == 3
        rows.append([p.detach() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))


def disturbed(runner: str, seed: int) -> list[Tensor]:
    """Many small tensors, trained while their owner replaces gradients, weights and state, and freezes some."""
    random = torch.Generator().manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(3, generator=random)) for _ in range(MANY + 5)]
    ours = descend.optim.SGD(params, lr=0.1, momentum=0.9, runner=runner)
    for step in range(5):
        for p in params:
            p.grad = torch.randn(3, generator=random)
        i, j, k = (int(x) for x in torch.randint(len(params), (3,), generator=random))
        if step % 4 == 1:
            params[i].grad, params[j].grad = None, torch.randn(6, generator=random)[::2]
            params[k].requires_grad_(not params[k].requires_grad)
        elif step % 4 == 2:
            params[i].data = params[i].data * 2
            ours.state[params[j]]["b"].data = torch.ones(3)
            ours.param_groups[0]["lr"] *= 0.5
        elif step % 4 == 3:
            ours.state[params[k]]["b"].mul_(3)
            ours.load_state_dict(ours.state_dict())
            params[j].grad = params[i].grad
        ours.step()
    return [p.detach().clone() for p in params]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_many_tensors_that_their_owner_disturbs_are_updated_as_plainly(seed: int, threads: None) -> None:
    torch.set_num_threads(2)
    torch.testing.assert_close(disturbed("compiled", seed), disturbed("plain", seed), rtol=1e-6, atol=1e-6)


def test_gradients_that_lie_otherwise_are_used() -> None:
    results: list[list[Tensor]] = []
    for runner in ("plain", "blocks", "compiled"):
        random = torch.Generator().manual_seed(0)
        p, q, n = (torch.nn.Parameter(torch.randn(200, 300, generator=random)) for _ in range(3))
        r = torch.nn.Parameter(torch.randn(2, 3, 40, 50, generator=random).to(memory_format=torch.channels_last))
        ours = descend.optim.SGD([p, q, n, r], lr=0.1, runner=runner)
        for _ in range(3):
            p.grad = torch.randn(300, 200, generator=random).t()
            q.grad = torch.tensor(0.5).expand(200, 300)
            n.grad = torch._neg_view(torch.randn(200, 300, generator=random))  # in memory with the other sign
            r.grad = torch.randn(2, 3, 40, 50, generator=random)
            ours.step()
        results.append([x.detach().contiguous() for x in (p, q, n, r)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-6, atol=1e-6)


def in_other_order(shape: tuple[int, ...], order: tuple[int, ...], random: torch.Generator) -> Tensor:
    """A random tensor without gaps whose dimensions lie in this order, the innermost last."""
    lying = torch.randn([shape[i] for i in order], generator=random)
    return lying.permute([order.index(i) for i in range(len(order))])


# Shape, order of the dimensions of the weights, order of those of the gradient, and whether kernels read it as it lies.
LAYOUTS = [
    ((64, 40, 3, 3), (0, 2, 3, 1), (0, 1, 2, 3), True),  # convolutions: weights channels_last, gradients not
    ((3, 500, 7, 5), (0, 2, 3, 1), (0, 1, 2, 3), True),
    ((200, 3, 3, 3), (0, 1, 2, 3), (0, 2, 3, 1), True),
    ((90, 70, 1, 1), (0, 2, 3, 1), (0, 1, 2, 3), True),
    ((300, 150), (0, 1), (1, 0), True),
    ((7, 5000), (0, 1), (1, 0), True),
    ((40, 50, 30), (2, 0, 1), (1, 2, 0), True),
    ((300, 400), (0, 1), (1, 0), False),  # elements of a unit lie all over it
]


@pytest.mark.parametrize("name", ["sgd", "lars", "lans"])
def test_gradients_in_another_order_are_put_in_order_on_the_way(name: str, threads: None) -> None:
    torch.set_num_threads(2)
    results: list[list[Tensor]] = []
    for runner in ("blocks", "compiled"):
        random = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(in_other_order(shape, lying, random)) for shape, lying, _, _ in LAYOUTS]
        ours = descend.optim.create(name, params, lr=0.1, runner=runner)
        for step in range(3):
            for p, (shape, lying, other, _) in zip(params, LAYOUTS, strict=True):
                p.grad = in_other_order(shape, lying if step == 1 else other, random)
            ours.step()
        results.append([p.detach() for p in params])
        native = ours._arenas.arenas[0].native
        if isinstance(native, Native):
            read = dict(zip(native.params.objects.tolist(), native.gradient.tolist(), strict=True))
            gradients = [(id(p), p.grad.data_ptr()) for p in params if p.grad is not None]
            assert [read[p] == address for p, address in gradients] == [as_it_lies for *_, as_it_lies in LAYOUTS]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["sgd", "lars", "lans"])
def test_nothing_changes_where_a_gradient_in_another_order_is_not_finite(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(in_other_order((64, 40, 3, 3), (0, 2, 3, 1), random)) for _ in range(2)]
    ours = descend.optim.create(name, params, lr=0.1, runner="compiled", on_nonfinite="skip")
    for place in (None, 0, 9_000, 64 * 360 - 1):
        for p in params:
            p.grad = in_other_order((64, 40, 3, 3), (0, 1, 2, 3), random)
        if place is not None:
            assert params[0].grad is not None
            params[0].grad.view(-1)[place] = float("nan")
        before = [x.clone() for p in params for x in (p, *ours.state[p].values())] if place is not None else []
        ours.step()
        after = [x for p in params for x in (p, *ours.state[p].values())]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=place is not None))
    assert (ours.updates, ours.skipped) == (1, 3)


def test_a_sparse_gradient_is_refused_by_name() -> None:
    p = torch.nn.Parameter(torch.zeros(5, 2))
    p.grad = torch.zeros(5, 2)
    ours = descend.optim.SGD([("embedding", p)], lr=0.1, runner="compiled")
    ours.step()
    p.grad = torch.ones(5, 2).to_sparse()
    with pytest.raises(RuleError, match="'embedding' has a sparse gradient"):
        ours.step()


def test_callers_gradients_are_left_alone() -> None:
    p = torch.nn.Parameter(torch.ones(300))
    p.grad = torch.linspace(0, 1, 300)
    ours = descend.optim.Adam([p], runner="compiled", clip_value=0.5, weight_decay=0.1)
    ours.step()
    assert torch.equal(p.grad, torch.linspace(0, 1, 300))


def test_groups_may_differ_in_rate_and_constants() -> None:
    def run(runner: str) -> list[Tensor]:
        params = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(70))]
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        groups = [{"params": params[:1], "lr": 0.1, "beta1": 0.5}, {"params": params[1:], "weight_decay": 0.1}]
        ours = descend.optim.AdamW(groups, lr=1e-2, weight_decay=0.0, runner=runner)
        for _ in range(3):
            ours.step()
            ours.param_groups[0]["lr"] *= 0.5
        return [p.detach() for p in params]

    torch.testing.assert_close(run("compiled"), run("plain"), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "lars"])  # the check of the latter makes norms, which overflow here
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_finite_check_passes_over_no_element(dtype: torch.dtype, name: str, threads: None) -> None:
    """Units are read in stretches side by side; what does not divide into them follows."""
    sizes = [1, 127, 129, 2 * UNIT + 777, 9 * UNIT + 70]
    params = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]
    ours = descend.optim.create(name, params, lr=0.0, runner="compiled", on_nonfinite="skip")
    largest = torch.finfo(dtype).max
    for p in params:
        p.grad = torch.full_like(p, -largest)
    places = [(i, at) for i, n in enumerate(sizes) for at in sorted({0, n // 2, n - 1})]
    places += [(3, UNIT * quarter // 4 - off) for quarter in range(1, 8) for off in (0, 1)]
    places += [(3, at) for at in range(sizes[3] - 10, sizes[3] - 1)]
    places += [(4, unit * UNIT + at) for unit in range(9) for at in (0, UNIT - 1)]
    ours.step()
    assert ours.skipped == 0
    for number, (i, at) in enumerate(places):
        torch.set_num_threads(1 + number % 2)
        gradient = params[i].grad
        assert gradient is not None
        gradient[at] = float("nan") if number % 3 else -float("inf")
        ours.step()
        gradient[at] = largest
        assert ours.skipped == number + 1, (i, at)
    ours.step()
    assert (ours.skipped, ours.updates) == (len(places), 2)
