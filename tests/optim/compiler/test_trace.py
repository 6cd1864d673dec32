"""A rule read as text, and the text cut into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from descend.optim.compiler.partition import numbers, partition
from descend.optim.compiler.trace import Op, Ref, Untraceable, from_structure, late_reductions, trace
from descend.optim.engine.settings import GroupSettings
from descend.optim.rules import ALL_RULES, DCASGD, LAMB, LANS, LARS, Adam, Rule


def settings(rule: Rule, **changed: Any) -> GroupSettings:
    options = {"lr": 0.1, "decay": 0.01, "decay_form": "coupled", "rescale": 1.0, "clip": None, "scaled": True}
    return GroupSettings(rule=rule, **(options | changed))


def test_values_of_constants_are_not_part_of_the_structure() -> None:
    one, other = trace(settings(Adam()), False), trace(settings(Adam(beta1=0.5, eps=1e-3), clip=None, lr=3.0), False)
    assert one.structure is other.structure
    assert one.literals != other.literals
    assert trace(settings(Adam(), clip=1.0), False).structure != one.structure


@pytest.mark.parametrize("rule", [rule for rule in ALL_RULES if not rule.whole_tensor], ids=repr)
def test_every_elementwise_rule_can_be_read_and_its_structure_read_back(rule: Rule) -> None:
    text = trace(settings(rule), True)
    assert from_structure(text.structure).ops == text.ops
    assert all(ref < at for at, op in enumerate(text.ops) for ref in op.refs)


def test_what_a_kernel_reads_is_not_overwritten_before() -> None:
    for rule in ALL_RULES:
        if rule.whole_tensor:
            continue
        written: set[str] = set()
        for kernel in partition(trace(settings(rule), False)):
            old = {name for at, name in kernel.loads.items() if kernel.trace.ops[at].name == "input"}
            assert not old & written, rule
            written |= kernel.writes.keys()
        assert "p" in written


def test_an_old_value_is_moved_before_it_is_overwritten() -> None:
    (kernel,) = partition(trace(settings(DCASGD()), False))
    assert kernel.buffers.index("s.q") < kernel.buffers.index("p")


def test_lamb_takes_two_passes_and_the_second_reads_no_gradient() -> None:
    first, second = partition(trace(settings(LAMB()), False))
    assert set(first.writes) == {"s.m", "s.v"}
    assert len(first.sums) == 2
    assert set(second.buffers) == {"p", "s.m", "s.v"}
    assert len(partition(trace(settings(LARS()), False))) == 2


def test_a_norm_is_taken_where_what_it_sums_is_read_anyway() -> None:
    """LANS needs ‖p‖ in its last pass, and the one before reads p for ‖u₁‖; LAMB and LARS need it in the next one."""
    first, second, third = partition(trace(settings(LANS()), False))
    assert (first.buffers, len(first.sums)) == (("g",), 1)
    assert (set(second.buffers), len(second.sums)) == ({"g", "p", "s.m", "s.v"}, 3)
    assert not third.sums


@pytest.mark.parametrize(("read", "stage"), [(0, 1), (1, 2)])  # g or p
def test_a_norm_of_what_the_pass_before_its_use_does_not_read_is_taken_early(read: int, stage: int) -> None:
    """‖p‖ and ‖‖g‖ (g + x)‖ are needed in the third pass; x is g or p."""
    ops = (
        Op("input", ("g",), (), "element", 0),
        Op("input", ("p",), (), "element", 0),
        Op("norm", (Ref(0),), (), "number", 1),
        Op("norm", (Ref(1),), (), "number", 1),
        Op("operator.add", (Ref(0), Ref(read)), (), "element", 0),
        Op("operator.mul", (Ref(2), Ref(4)), (), "element", 1),
        Op("norm", (Ref(5),), (), "number", 2),
        Op("operator.mul", (Ref(3), Ref(6)), (), "number", 2),
        Op("operator.mul", (Ref(7), Ref(1)), (), "element", 2),
    )
    assert [op.stage for op in late_reductions(ops, [8])] == [0, 0, 1, stage, 0, 1, 2, 2, 2]


def test_bias_correction_is_computed_outside_in_float64() -> None:
    text = trace(settings(Adam()), False)
    known: dict[int, Any] = {}
    for at, op in enumerate(text.ops):
        if op.name == "literal":
            known[at] = text.literals[op.args[0]]
        elif op.name == "input" and op.kind == "number":
            known[at] = {"t": 1.0, "lr": 0.1, "decay": 0.01, "scaled": 1.0}[op.args[0]]
    numbers(text, known, 0)
    (kernel,) = partition(text)
    handed = [known[at] for at in kernel.numbers]
    assert any(abs(x - 1 / (1 - 0.999)) < 1e-9 for x in handed)
    assert not any(text.ops[at].name in ("operator.pow", "pow") for at in kernel.order if at not in kernel.numbers)


@dataclass(frozen=True)
class Bounded(Rule):
    """Bounds that follow from the step, in each way in which torch takes them."""

    form: str

    def direction(self, g: Tensor, t: Tensor) -> tuple[Tensor, None]:
        low, high = -1.0 / t, 0.5 / t
        forms = {
            "both": lambda: g.clamp(low, high),
            "named": lambda: g.clamp(min=low, max=high),
            "low": lambda: g.clamp(low),
            "high": lambda: torch.clamp(g, None, high),
        }
        return forms[self.form](), None


@pytest.mark.parametrize("form", ["both", "named", "low", "high"])
def test_bounds_that_are_computed_are_read(form: str) -> None:
    from descend.optim import Optimizer

    trace(settings(Bounded(form)), False)
    found: list[Tensor] = []
    for runner in ("plain", "blocks"):
        p = torch.nn.Parameter(torch.zeros(5))
        ours = Optimizer([p], Bounded(form), lr=1.0, runner=runner)
        for _ in range(2):
            p.grad = torch.tensor([-9.0, -0.7, 0.0, 0.3, 9.0])
            ours.step()
        found.append(p.detach())
    assert torch.equal(*found)


@dataclass(frozen=True)
class Branching(Rule):
    def direction(self, g: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return (g if t > 1 else -g), None


@dataclass(frozen=True)
class Summing(Rule):
    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        return g - g.mean(), None


@dataclass(frozen=True)
class Shaped(Rule):
    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        return g.reshape(-1), None


@pytest.mark.parametrize(
    ("rule", "words"),
    [(Branching(), "branches on a value"), (Summing(), ".mean, which is not elementwise"), (Shaped(), ".reshape")],
)
def test_what_is_not_elementwise_is_not_read_wrongly(rule: Rule, words: str) -> None:
    with pytest.raises(Untraceable, match=words):
        trace(settings(rule), False)


def test_such_a_rule_still_runs_plainly_and_one_line_says_so() -> None:
    from descend.optim import Optimizer

    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = torch.tensor([1.0, 2.0, 3.0, 6.0])
    with pytest.warns(UserWarning, match="Summing runs one tensor at a time: it uses .mean"):
        Optimizer([p], Summing(), lr=1.0).step()
    assert p.tolist() == [2.0, 1.0, 0.0, -3.0]
