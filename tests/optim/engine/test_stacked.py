"""Tensors of one shape that are updated at once, beside one tensor at a time."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import descend.optim
from descend.optim.engine import stacked
from descend.optim.engine.stacked import TensorStack
from descend.optim.optimizer import Optimizer
from descend.optim.rules import SOAP, Adafactor, GroupAdaGrad, Muon, Rule
from descend.torch_private import dispatch_mode, version_counter

Shapes = list[tuple[int, ...]]
SHAPES: Shapes = [(5, 5), (7,), (5, 5), (6, 2, 3), (5, 5), (7,), (6, 2, 3), (2, 3), (4, 4), (), ()]
RULES = [
    Muon(),
    Muon(nesterov=False, adjust="match_rms_adamw"),
    SOAP(frequency=3),
    SOAP(frequency=2, max_side=4),
    GroupAdaGrad(),
    Adafactor(),
]


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each stack has that is updated; Adafactor goes as on a GPU without its kernel."""
    found: list[int] = []
    gather = TensorStack.gather

    def seen(self: TensorStack) -> Any:
        found.append(len(self.members))
        return gather(self)

    monkeypatch.setattr(TensorStack, "gather", seen)
    monkeypatch.setattr(
        "descend.optim.engine.arena_manager.ArenaManager.step_matrices", lambda self, tasks, settings: tasks
    )
    return found


class Run:
    """Parameters with gradients that are drawn, every third of which is missing in the second step."""

    def __init__(self, rule: Rule, runner: str, shapes: Shapes, dtype: torch.dtype, **options: Any) -> None:
        self.draw = torch.Generator().manual_seed(0)
        self.params = [nn.Parameter(self.drawn(shape, dtype)) for shape in shapes]
        self.ours = Optimizer(self.params, rule, lr=1e-2, runner=runner, **options)
        self.steps = 0

    def drawn(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self.draw, dtype=torch.float64).to(dtype)

    def step(self, count: int = 1) -> Run:
        for _ in range(count):
            for i, p in enumerate(self.params):
                g = self.drawn(tuple(p.shape), p.dtype)
                p.grad = None if self.steps == 1 and i % 3 == 0 else g
            self.ours.step()
            self.steps += 1
        return self

    @property
    def held(self) -> list[Tensor]:
        """Weights and state; bases are arbitrary where g gᵀ is singular."""
        state = [
            x for p in self.params for name, x in sorted(self.ours.state[p].items()) if name not in ("QL", "QR", "M")
        ]
        return [x.detach().clone() for x in (*self.params, *state)]


def trained(rule: Rule, runner: str, dtype: torch.dtype = torch.float64, **options: Any) -> list[Tensor]:
    shapes = [shape for shape in SHAPES if not isinstance(rule, SOAP) or len(shape) < 3]
    run = Run(rule, runner, shapes, dtype, **options).step(12)
    return [x for x in run.held if not isinstance(rule, SOAP) or x.shape in (*SHAPES, ())]


def assert_close(found: list[Tensor], expected: list[Tensor], rtol: float = 1e-9, atol: float = 1e-11) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


DECAYS: list[dict[str, Any]] = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decay": "coupled"}]


@pytest.mark.parametrize(
    ("rule", "options"),
    [(rule, options) for rule in RULES for options in DECAYS if not {"decay"} <= {*options} & rule.needs],
    ids=str,
)
def test_a_stack_is_updated_as_its_tensors_are(rule: Rule, options: dict[str, Any], heights: list[int]) -> None:
    expected = trained(rule, "plain", **options)
    assert heights == []
    found = trained(rule, "blocks", **options)
    assert set(heights) >= {2, 3}
    # Without a decay weights are moved in place, where torch rounds once instead of twice.
    assert_close(found, expected, rtol=1e-7 if isinstance(rule, SOAP) else 1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [Muon(), GroupAdaGrad(), Adafactor()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_precision_of_weights(rule: Rule, dtype: torch.dtype, heights: list[int]) -> None:
    close = {"rtol": 2e-2, "atol": 1e-2} if dtype is not torch.float32 else {"rtol": 2e-5, "atol": 2e-5}
    assert_close(trained(rule, "blocks", dtype), trained(rule, "plain", dtype), **close)
    assert heights


def test_low_precision_weights_that_were_written_count_and_not_their_master(heights: list[int]) -> None:
    runs = [Run(Muon(), runner, [(4, 4)] * 3, torch.bfloat16).step() for runner in ("plain", "blocks")]
    for run in runs:
        with torch.no_grad():
            run.params[1].fill_(0.5)
        run.step()
    assert_close(runs[1].held, runs[0].held, rtol=1e-2, atol=1e-3)
    assert abs(runs[1].ours.state[runs[1].params[1]]["master"].mean().item() - 0.5) < 0.05
    assert heights


@pytest.mark.parametrize("shape", [(48, 24), (24, 48), (48, 6, 2, 2)], ids=str)
def test_tall_and_wide_stacks_get_what_single_matrices_get_in_bfloat16(shape: tuple[int, ...]) -> None:
    rule = Muon(bfloat16=True)
    found, expected = (Run(rule, runner, [shape] * 6, torch.float32).step(3).held for runner in ("blocks", "plain"))
    assert_close(found, expected, rtol=0, atol=3e-3)  # lr is 0.01, and bfloat16 has 8 bits


class Products(TorchDispatchMode):
    """Notes the strides of the results of products."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.strides.append(made.stride())
        return made


@pytest.mark.parametrize("shape", [(48, 24), (24, 48), (36, 36), (12, 3, 4, 6), (48, 6, 2, 2)], ids=str)
@pytest.mark.parametrize("rule", [Muon(), Muon(bfloat16=True), SOAP(frequency=2)], ids=str)
def test_products_are_written_row_by_row(rule: Rule, shape: tuple[int, ...]) -> None:
    """Column by column products of stacks in bfloat16 take a hundred times longer."""
    run = Run(rule, "blocks", [shape] * 6, torch.float32)
    with Products() as products:
        run.step(2)
    assert products.strides
    assert all(columns <= rows for *_, rows, columns in products.strides)


def launches(step: Any) -> int:
    """Operations of a step."""
    found: list[str] = []

    def seen(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found.append(str(function))
        return function(*args, **kwargs)

    with dispatch_mode(seen):
        step()
    return len(found)


@pytest.mark.parametrize("rule", [Muon(), SOAP(frequency=1), GroupAdaGrad()], ids=str)
def test_a_tensor_more_costs_no_launch(rule: Rule) -> None:
    counts: list[int] = []
    for count in (2, 9):
        params = [nn.Parameter(torch.ones(4, 4)) for _ in range(count)]
        ours = Optimizer(params, rule, lr=1e-2, runner="blocks", on_nonfinite="allow")
        for p in params:
            p.grad = torch.ones(4, 4)
        for _ in range(3):
            ours.step()
        counts.append(launches(ours.step) - count)  # where t is asked for, each step count is read
    assert abs(counts[0] - counts[1]) <= 7


def changed_on_the_way(rule: Rule, runner: str, shapes: Shapes) -> list[Tensor]:
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
            g = torch.randn(p.shape, generator=draw, dtype=torch.float64)
            p.grad = (g.t().contiguous().t() if g.ndim == 2 else g) if (i + step) % 5 else None
        if step == 4:
            name = "d" if isinstance(rule, Adafactor) else "eps"
            ours.param_groups[1][name] = 0.125
            params[0].requires_grad_(False)
        if step == 5:
            params.append(nn.Parameter(torch.ones(5, 5, dtype=torch.float64)))
            ours.add_param_group({"params": [params[-1]]})
        if step == 6:
            params[1].data = params[1].data * 2.0
        ours.step()
    held = [x for p in params for x in ours.state[p].values() if isinstance(x, Tensor) and not isinstance(rule, SOAP)]
    return [x.detach().clone() for x in (*params, *held)]


@pytest.mark.parametrize("rule", [Adafactor(), Muon(), SOAP(frequency=3)], ids=lambda rule: type(rule).__name__)
def test_groups_and_changes_mean_what_they_mean_to_one_tensor(rule: Rule, heights: list[int]) -> None:
    shapes: Shapes = [(5, 5), (7,), (), (1,), (5, 5), (7,), (5, 5), (5, 5), (5, 5)]
    if not isinstance(rule, SOAP):  # whose bases are arbitrary where g gᵀ is singular
        shapes += [(2, 3, 4, 4), (3, 1), (2, 3, 4, 4)]
    expected = changed_on_the_way(rule, "plain", shapes)
    assert heights == []
    assert_close(changed_on_the_way(rule, "blocks", shapes), expected, rtol=1e-8, atol=1e-10)
    assert heights


@pytest.mark.parametrize("rule", [Muon(), SOAP(frequency=3), GroupAdaGrad()], ids=lambda rule: type(rule).__name__)
def test_a_run_that_goes_on_from_a_saved_state_gets_the_bits_of_one_that_never_stopped(rule: Rule) -> None:
    """Also where the state was saved while some gradients were missing, so that memory was shared otherwise."""
    whole = Run(rule, "auto", SHAPES, torch.float32).step(7)
    for stop in (1, 2, 5):
        first = Run(rule, "auto", SHAPES, torch.float32).step(stop)
        file = io.BytesIO()
        torch.save(first.ours.state_dict(), file)
        file.seek(0)
        rest = Run(rule, "auto", SHAPES, torch.float32)
        rest.draw.set_state(first.draw.get_state())
        rest.steps = stop
        for p, q in zip(rest.params, first.params, strict=True):
            p.data = q.detach().clone()
        rest.ours.load_state_dict(torch.load(file, weights_only=True))
        rest.step(7 - stop)
        assert all(map(torch.equal, rest.held, whole.held))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_stay_where_they_are_and_the_state_of_a_stack_is_one_memory(dtype: torch.dtype) -> None:
    run = Run(SOAP(), "blocks", [(4, 4), (4, 4), (3,), (4, 4)], dtype)
    run.steps = 2  # of which no gradient is missing
    places = [p.data_ptr() for p in run.params]
    seen: list[list[tuple[int, int]]] = []
    for _ in range(4):
        run.step()
        held = [x for p in run.params for name, x in run.ours.state[p].items() if name not in ("step", "QL", "QR")]
        seen.append([(x.data_ptr(), version_counter(x)) for x in held])
    assert [p.data_ptr() for p in run.params] == places
    for (before, version), (after, later) in zip(seen[2], seen[3], strict=True):
        assert before == after
        assert later > version
    storages = {run.ours.state[run.params[i]]["M"].untyped_storage().data_ptr() for i in (0, 1, 3)}
    assert len(storages) == 1


def test_a_state_that_was_replaced_or_copied_counts() -> None:
    """By the user, by a copy of the optimizer, and with its values in another order in memory."""
    runs = [Run(Muon(), runner, [(4, 4)] * 3, torch.float64).step(2) for runner in ("plain", "blocks")]
    for run in runs:
        first, second = (run.ours.state[p] for p in run.params[:2])
        first["b"] = first["b"].t().contiguous().t() * 2.0
        first["b"], second["b"] = second["b"], first["b"]
        run.step()
    assert_close(runs[1].held, runs[0].held)
    other = copy.deepcopy(runs[1])
    other.step()
    before = runs[1].held
    assert_close(runs[1].held, before, rtol=0.0, atol=0.0)
    runs[0].step()
    assert_close(other.held, runs[0].held)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


class WithPair:
    """A rule of stacks with two entries."""

    whole_tensor: ClassVar[bool] = True
    takes_stacks: ClassVar[bool] = True

    def init(self, p: Tensor) -> Pair:
        return Pair(torch.zeros_like(p) + 0.25, torch.zeros_like(p) + 1.0)


@dataclass(frozen=True)
class ChangesPlaces(WithPair, Rule):
    def direction(self, g: Tensor, s: Pair) -> tuple[Tensor, Pair]:
        return g * s.a, Pair(s.b, s.a)


@dataclass(frozen=True)
class GivesItsState(WithPair, Rule):
    def direction(self, g: Tensor, s: Pair) -> tuple[Tensor, Pair]:
        return s.a, Pair(s.a + g, s.b)


@dataclass(frozen=True)
class KeepsTheWeights(WithPair, Rule):
    def update(self, g: Tensor, p: Tensor, s: Pair, lr: Tensor) -> tuple[Tensor, Pair]:
        return s.a, Pair(p - lr * g, p)


@dataclass(frozen=True)
class OfNumbers(WithPair, Rule):
    def direction(
        self, g: Tensor, p: Tensor, s: Pair, t: Tensor, norm: Any, total: Any, size: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Pair]:
        assert g.shape[g.ndim - len(shape) :] == shape
        return g / (1 + norm(p)) + total(g * p) / size / t, s


@pytest.mark.parametrize("rule", [ChangesPlaces(), GivesItsState(), KeepsTheWeights(), OfNumbers()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_rules_of_a_user_that_take_stacks(rule: Rule, dtype: torch.dtype, heights: list[int]) -> None:
    """What a rule returns may be what another place held; norms and totals are those of each tensor."""
    shapes: Shapes = [(4, 3), (), (4, 3), (130,), (130,), ()]
    found, expected = (Run(rule, runner, shapes, dtype).step(5).held for runner in ("blocks", "plain"))
    close = {"rtol": 2**-6, "atol": 2**-6} if dtype is torch.bfloat16 else {"rtol": 1e-12, "atol": 1e-12}
    assert_close(found, expected, **close)
    assert set(heights) == {2}


@dataclass(frozen=True)
class Drawing(Rule):
    """A rule of one tensor, which draws from torch's own generator and asks for values."""

    whole_tensor = True

    def direction(self, g: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return (g + torch.rand_like(g)) * float(g.sum()) / int(t), None


def test_a_rule_that_does_not_say_so_takes_no_stacks(heights: list[int]) -> None:
    found: list[list[Tensor]] = []
    for runner in ("plain", "blocks"):
        torch.manual_seed(3)
        found.append(Run(Drawing(), runner, [(5, 5)] * 6, torch.float32).step(3).held)
    assert all(map(torch.equal, *found))
    assert heights == []


class Named(nn.Parameter):
    """A tensor of another class, which may mean something else by an operation."""


def test_what_is_large_single_empty_or_of_another_class_goes_alone(
    heights: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "ALONE_ON_CPU", 64)
    for rule, shapes in (
        (Muon(), [(8, 8), (8, 8), (3, 4), (4, 3)]),
        (Muon(), [(0, 3), (0, 3)]),
    ):
        assert_close(Run(rule, "blocks", shapes, torch.float64).step(2).held,
                     Run(rule, "plain", shapes, torch.float64).step(2).held)  # fmt: skip
    params = [Named(torch.ones(3, 3)) for _ in range(2)]
    for p in params:
        p.grad = torch.ones(3, 3)
    descend.optim.Muon(params, lr=0.1).step()
    assert heights == []


def test_stacks_are_bounded_and_about_as_high(heights: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "MOST_ON_CPU", 6 * 84)
    shapes: Shapes = [(7, 12)] * 13 + [(12, 7)] * 4
    found = Run(Muon(), "blocks", shapes, torch.float64).step(1).held
    assert sorted(heights) == [4, 4, 4, 5]
    assert_close(found, Run(Muon(), "plain", shapes, torch.float64).step(1).held)


def test_members_have_one_count_where_the_rule_asks_for_it(heights: list[int]) -> None:
    """After the second step, in which some gradients are missing."""
    for rule, expected in ((Muon(), [6, 4, 6]), (SOAP(), [6, 4, 2, 4])):
        heights.clear()
        Run(rule, "blocks", [(3, 3)] * 6, torch.float32).step(3)
        assert heights == expected


@pytest.mark.parametrize("rule", [Muon(), SOAP(), GroupAdaGrad()], ids=lambda rule: type(rule).__name__)
def test_a_gradient_that_is_not_finite_changes_nothing(rule: Rule) -> None:
    run = Run(rule, "blocks", [(4, 4)] * 3, torch.float32, on_nonfinite="skip").step(2)
    before = run.held
    for p in run.params:
        p.grad = torch.full_like(p, float("nan")) if p is run.params[1] else torch.ones_like(p)
    run.ours.step()
    assert run.ours.skipped == 1
    assert all(map(torch.equal, before, run.held))
