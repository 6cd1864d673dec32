"""Every runner agrees with the plain one to rounding, for every rule, over every kind of tensor."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch
from system_needs import COMPILED, needs_compiler
from torch import Tensor

from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.arena_layout import LARGE
from descend.optim.engine.segments import PACKED
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, Adam, Rule

Make = Callable[[torch.Generator, torch.dtype], Tensor]


def drawn(*shape: int) -> Make:
    return lambda random, dtype: torch.randn(shape, generator=random).to(dtype)


TENSORS: dict[str, Make] = {
    "scalar": drawn(),
    "one": drawn(1),
    "empty": drawn(0),
    "matrix": drawn(4, 3),
    "transposed": lambda random, dtype: drawn(5, 7)(random, dtype).t(),
    "channels last": lambda random, dtype: drawn(2, 3, 5, 5)(random, dtype).to(memory_format=torch.channels_last),
    "one block": drawn(8, 8),
    "zeros": lambda random, dtype: torch.zeros(3, 5, dtype=dtype),
    "frozen": drawn(6),
    "never a gradient": drawn(6),
    "sometimes a gradient": drawn(70),
    "large": drawn(40, 33),
    "large, whole blocks": drawn(64, 32),
}


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tensors of a thousand elements count as large, and a few blocks as many."""
    monkeypatch.setattr("descend.optim.engine.arena_layout.LARGE", 1000)
    monkeypatch.setattr("descend.optim.engine.segments.PACKED", 256)
    monkeypatch.setattr("descend.optim.engine.blocks.CHUNK", 8)


def trained(rule: Rule, runner: str, dtype: torch.dtype, steps: int = 6) -> dict[str, Tensor]:
    """The weights and state after some steps, with two groups that differ in rate, decay and clipping."""
    random = torch.Generator().manual_seed(3)
    weights = {name: torch.nn.Parameter(make(random, dtype)) for name, make in TENSORS.items()}
    weights["frozen"].requires_grad_(False)
    named = list(weights.items())
    optimizer = Optimizer(
        [{"params": named[:6]}, {"params": named[6:], "lr": 3e-3, "weight_decay": 0.0}],
        rule,
        lr=1e-2,
        weight_decay=0.1,
        clip_value=1.5,
        rescale_grad=0.5,
        runner=runner,
        seed=7,
    )
    for step in range(steps):
        for name, p in weights.items():
            g = torch.randn(p.shape, generator=random).to(dtype)
            silent = name in ("frozen", "never a gradient") or (name == "sometimes a gradient" and step % 2)
            p.grad = None if silent else torch.zeros_like(p) if step == 4 else g
        optimizer.step()
    state = {f"{name}.{key}": x for name, p in weights.items() for key, x in optimizer.state[p].items()}
    assert not optimizer.state[weights["frozen"]]
    return {**{name: p.detach() for name, p in weights.items()}, **state}


def compare(rule: Rule, runner: str, dtype: torch.dtype) -> None:
    expected, found = trained(rule, "plain", dtype), trained(rule, runner, dtype)
    assert found.keys() == expected.keys()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 1e-2)
    for name, value in expected.items():
        exact = name.split(".")[0] in ("frozen", "never a gradient") or name.endswith(".step")
        scale = max(1.0, value.abs().max().item() if value.numel() else 0.0)
        allowed = 0.0 if exact else tolerance
        torch.testing.assert_close(found[name], value, rtol=allowed, atol=allowed * scale, msg=f"{name} under {runner}")


# float32 finds mistakes in a rule's trace; the other precisions differ in the engine, and by state.
_PRECISIONS = [(rule, torch.float32) for rule in ALL_RULES]
_PRECISIONS += [(rule, torch.bfloat16) for rule in {type(rule): rule for rule in ALL_RULES}.values()]
_PRECISIONS += [(rule, torch.float64) for rule in ALL_RULES[::7]]


@pytest.mark.parametrize(("rule", "dtype"), _PRECISIONS, ids=lambda x: str(x))
def test_blocks_agree_with_plain(rule: Rule, dtype: torch.dtype) -> None:
    compare(rule, "blocks", dtype)


def equal(rule: Rule, dtype: torch.dtype) -> None:
    expected, found = trained(rule, "blocks", dtype), trained(rule, "compiled", dtype)
    different = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    assert not different


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_compiler
@pytest.mark.parametrize(
    ("rule", "dtype"), [(rule, dtype) for rule, dtype in _PRECISIONS if not rule.whole_tensor], ids=lambda x: str(x)
)
def test_compiled_equals_blocks_to_the_last_bit(rule: Rule, dtype: torch.dtype) -> None:
    """So what is compiled agrees with `plain` as closely as blocks do, see above."""
    equal(rule, dtype)


@needs_compiler
def test_compiled_adam_equals_blocks_to_the_last_bit() -> None:
    equal(Adam(), torch.float32)


def python_calls(rule: Rule, tensors: int) -> int:
    """Of Python's functions and of C's, in one step under compiled kernels."""
    params = [torch.nn.Parameter(torch.ones(64)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.ones(64)
    optimizer = Optimizer(params, rule, lr=1e-3, weight_decay=0.1, runner="compiled")
    for _ in range(3):
        optimizer.step()
    assert optimizer.is_compiled
    seen = collections.Counter[str]()
    sys.setprofile(lambda frame, event, arg: seen.update([event]))
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]


TOGETHER = {type(rule): rule for rule in ALL_RULES if not rule.whole_tensor and "noise" not in rule.needs}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_compiler
@pytest.mark.parametrize("rule", TOGETHER.values(), ids=repr)
def test_python_does_nothing_for_each_tensor(rule: Rule) -> None:
    assert python_calls(rule, 300) <= python_calls(rule, 10) + 5


def test_the_limits_are_those_of_the_arena() -> None:
    """The fixture above replaces names that the arena reads."""
    assert LARGE % BLOCK == 0
    assert PACKED % BLOCK == 0


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


class WithPair:
    """A rule with two entries, shaped like p or of one number."""

    one_number: ClassVar[bool] = False

    def init(self, p: Tensor) -> Pair:
        like = torch.zeros((), dtype=torch.float64) if self.one_number else torch.zeros_like(p)
        return Pair(like + 0.25, like + 1.0)


@dataclass(frozen=True)
class ChangesPlaces(WithPair, Rule):
    def direction(self, g: Tensor, s: Pair) -> tuple[Tensor, Pair]:
        return g * s.a, Pair(s.b, s.a)


@dataclass(frozen=True)
class NumbersChangePlaces(ChangesPlaces):
    one_number: ClassVar[bool] = True


@dataclass(frozen=True)
class KeepsTheWeights(WithPair, Rule):
    def direction(self, g: Tensor, p: Tensor, s: Pair) -> tuple[Tensor, Pair]:
        return g + 0.1 * s.b, Pair(p, s.a)


@dataclass(frozen=True)
class ReturnsWhatItKept(WithPair, Rule):
    def update(self, g: Tensor, p: Tensor, s: Pair, lr: Tensor) -> tuple[Tensor, Pair]:
        return s.a, Pair(p - lr * g, p)


def by_hand(rule: Rule, start: Tensor, gradients: list[Tensor], lr: float) -> Tensor:
    """The weights after these updates, every value a new tensor."""
    p, s = start.clone(), rule.init(start)
    for g in gradients:
        known = {"g": g.clone(), "p": p.clone(), "s": Pair(s.a.clone(), s.b.clone()), "lr": torch.tensor(lr)}
        new, s = getattr(rule, rule.moves)(**{name: known[name] for name in rule.needs})
        p = p - lr * new if rule.moves == "direction" else new
    return p


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("runner", ["plain", "blocks", COMPILED])
@pytest.mark.parametrize("rule", [ChangesPlaces(), NumbersChangePlaces(), KeepsTheWeights(), ReturnsWhatItKept()])
def test_what_a_rule_returns_may_be_what_another_place_held(rule: Rule, runner: str, dtype: torch.dtype) -> None:
    """A place that is written early must not change what is still to be written to another."""
    random = torch.Generator().manual_seed(5)
    starts = [torch.randn(shape, generator=random).to(dtype) for shape in ((4, 3), (), (130,))]
    gradients = [[torch.randn(w.shape, generator=random).to(dtype) for _ in range(4)] for w in starts]
    weights = [torch.nn.Parameter(w.clone()) for w in starts]
    optimizer = Optimizer(weights, rule, lr=0.125, runner=runner)
    for each in zip(*gradients, strict=True):
        for p, g in zip(weights, each, strict=True):
            p.grad = g
        optimizer.step()
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    for p, start, each in zip(weights, starts, gradients, strict=True):
        wanted = by_hand(rule, start.to(wide), [g.to(wide) for g in each], 0.125).to(dtype)
        torch.testing.assert_close(p.detach(), wanted, rtol=1e-12 if dtype is wide else 2**-8, atol=1e-14)


@dataclass(frozen=True)
class Lerping(Rule):
    """Functions that want one precision in all of their tensors, and settings that are None."""

    def init(self, p: Tensor) -> Pair:
        return Pair(torch.zeros_like(p), torch.zeros_like(p))

    def direction(self, g: Tensor, s: Pair) -> tuple[Tensor, Pair]:
        a = torch.lerp(s.a, g, 0.25)
        return torch.clamp(a, None, 0.5).div(2.0, rounding_mode=None) + torch.clamp(g, min=-1.0, max=None), Pair(a, s.b)


@pytest.mark.parametrize("runner", ["plain", "blocks", COMPILED])
def test_gradients_have_the_precision_of_the_state_and_none_is_nothing_said(runner: str) -> None:
    """A tensor without dimensions takes the precision of a number that it is multiplied by, such as the decay."""
    p, q = torch.nn.Parameter(torch.tensor(2.0)), torch.nn.Parameter(torch.full((70,), 2.0))
    optimizer = Optimizer([p, q], Lerping(), lr=0.5, weight_decay=0.25, runner=runner)
    p.grad, q.grad = torch.tensor(3.5), torch.full((70,), 3.5)
    optimizer.step()  # the gradient is 4, its part 1, of which 0.5 / 2 and 4 remain
    assert p.item() == 2.0 - 0.5 * 4.25
    assert q.tolist() == [2.0 - 0.5 * 4.25] * 70
