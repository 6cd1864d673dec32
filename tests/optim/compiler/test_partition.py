"""Kernels of a trace: their stages, sums and numbers, and what they compute, worked out by hand."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import pytest
import torch

from descend.optim.compiler.partition import (
    Kernel,
    block_sums,
    elements,
    needed,
    numbers,
    of_gradient,
    partition,
    without_sums,
)
from descend.optim.compiler.trace import FUNCTIONS, Op, Ref, Trace


def trace_of(*ops: Op, **outputs: int) -> Trace:
    return Trace(ops, (), outputs)


def element(name: str, *args: Any, stage: int = 0) -> Op:
    return Op(name, args, (), "element", stage)


def number(name: str, *args: Any, stage: int = 0, **named: Any) -> Op:
    return Op(name, args, tuple(named.items()), "number", stage)


# p ← p / ‖g‖: the norm is known after a first pass over all elements.
NORMALISED = trace_of(
    element("input", "g"),
    element("input", "p"),
    number("norm", Ref(0), stage=1),
    element("operator.truediv", Ref(1), Ref(2), stage=1),
    p=3,
)


def test_a_norm_ends_a_kernel():
    first, second = partition(NORMALISED)
    assert (first.buffers, first.sums, first.numbers) == (("g",), (2,), ())
    assert (second.buffers, second.sums, second.numbers) == (("p",), (), (2,))
    assert second.writes == {"p": 3}


def test_sums_of_the_gradient_alone_are_found():
    """Of ‖g‖, ‖p‖, ‖g + p‖ and ‖2 g‖: the first alone needs neither a buffer nor a number beside the gradient."""
    text = trace_of(
        element("input", "g"),
        element("input", "p"),
        number("norm", Ref(0), stage=1),
        number("norm", Ref(1), stage=1),
        element("operator.add", Ref(0), Ref(1)),
        number("norm", Ref(4), stage=1),
        number("input", "lr"),
        element("operator.mul", Ref(0), Ref(6)),
        number("norm", Ref(7), stage=1),
        element("operator.mul", Ref(1), Ref(2), stage=1),
        p=9,
    )
    assert of_gradient(text).sums == (2,)
    first = partition(text)[0]
    assert first.sums == (2, 3, 5, 8)
    assert without_sums(first, (2, 5, 8)).sums == (3,)
    assert without_sums(first, (2, 5, 8)).buffers == ("p",)
    assert without_sums(first, (2,)).buffers == ("g", "p")


def test_two_buffers_that_change_places_are_written_by_one_kernel_that_reads_both():
    text = trace_of(
        element("input", "p"),
        element("input", "s.a"),
        element("clone", Ref(1)),
        element("clone", Ref(0)),
        p=2,
        **{"s.a": 3},
    )
    (kernel,) = partition(text)
    assert set(kernel.loads.values()) == set(kernel.writes) == {"p", "s.a"}


def test_a_write_waits_for_the_last_reader_of_the_old_value():
    """p's new value is ready in stage 0, and stage 1 reads the old one: both are written in stage 1."""
    text = trace_of(
        element("input", "g"),
        element("input", "p"),
        element("input", "s.m"),
        element("operator.sub", Ref(1), Ref(0)),
        number("norm", Ref(0), stage=1),
        element("operator.mul", Ref(1), Ref(4), stage=1),
        p=3,
        **{"s.m": 5},
    )
    first, second = partition(text)
    assert not first.writes
    assert set(second.writes) == {"p", "s.m"}


def test_elements_of_both_kernels_make_the_update():
    g, p = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([[10.0, 20.0]], dtype=torch.float64)
    first, second = partition(NORMALISED)
    valid = torch.tensor([2])
    _, (sums,) = elements(first, {"g": g}, {}, None, valid)
    assert sums.tolist() == [25.0]
    new, _ = elements(second, {"p": p}, {2: torch.tensor(5.0, dtype=torch.float64)}, None, valid)
    assert new["p"].tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize(("reduction", "expected"), [("norm", [1.0 + 4.0, 16.0]), ("total", [-1.0, 4.0])])
def test_padding_is_left_out_of_sums(reduction: str, expected: list[float]):
    x = torch.tensor([[1.0, -2.0, 99.0], [4.0, math.nan, math.inf]])
    assert block_sums(reduction, x, torch.tensor([2, 1])).tolist() == expected


def test_needed_stops_at_what_is_given():
    ops = (number("input", "t"), number("operator.mul", Ref(0), 2.0), number("operator.add", Ref(1), Ref(0)))
    assert needed(ops, [2], lambda at: False) == [0, 1, 2]
    assert needed(ops, [2], lambda at: at == 1) == [0, 1, 2]
    assert needed(ops, [1], lambda at: at == 1) == [1]


def test_numbers_are_those_of_python_and_of_torch_where_python_has_none():
    text = trace_of(
        number("input", "t"),
        number("operator.pow", 0.5, Ref(0)),
        number("operator.truediv", 1.0, Ref(1)),
        number("operator.sub", Ref(0), Ref(0)),
        number("operator.truediv", 1.0, Ref(3)),
    )
    known: dict[int, Any] = {0: 3.0}
    numbers(text, known, 0)
    assert known[1] == 0.125
    assert known[2] == 8.0
    assert known[4] == math.inf  # Python raises ZeroDivisionError


VALUES = (1.5, -2.0, 0.0, -0.0, math.inf, -math.inf, math.nan)
BOUNDS = {
    "minimum": number("minimum", Ref(0), Ref(1)),
    "maximum": number("maximum", Ref(0), Ref(1)),
    "clamp": number("clamp", Ref(0), min=0.0),
    "clamp_max": number("clamp", Ref(0), max=-2.0),
    "both": number("clamp", Ref(0), min=-1.0, max=1.0),
}


@pytest.mark.parametrize("op", BOUNDS.values(), ids=BOUNDS)
def test_bounds_of_numbers_are_those_of_torch(op: Op):
    text = trace_of(number("input", "t"), number("input", "lr"), op)
    for x, y in itertools.product(VALUES, VALUES):
        known: dict[int, Any] = {0: x, 1: y}
        numbers(text, known, 0)
        values = torch.tensor([x, y], dtype=torch.float64).unbind()
        expected = float(FUNCTIONS[op.name](*values[: len(op.args)], **dict(op.kwargs)))
        both_nan = math.isnan(known[2]) and math.isnan(expected)
        assert both_nan or struct.pack("d", known[2]) == struct.pack("d", expected)


def test_numbers_that_depend_on_one_input_are_computed_again():
    text = trace_of(
        number("input", "t"),
        number("input", "size"),
        number("operator.add", Ref(0), 1.0),
        number("operator.mul", Ref(1), 2.0),
        number("operator.sub", Ref(3), Ref(2)),
    )
    known: dict[int, Any] = {0: 3.0, 1: 10.0}
    numbers(text, known, 0)
    assert known == {0: 3.0, 1: 10.0, 2: 4.0, 3: 20.0, 4: 16.0}
    known |= {0: 99.0, 1: 20.0}  # t is not asked for
    numbers(text, known, 0, after="size")
    assert known == {0: 99.0, 1: 20.0, 2: 4.0, 3: 40.0, 4: 36.0}


def test_a_kernel_takes_a_buffer_that_is_moved_after_the_one_it_moves_to():
    text = trace_of(element("input", "a"), element("clone", Ref(0)), element("operator.neg", Ref(0)), a=2, b=1)
    (kernel,) = partition(text)
    assert isinstance(kernel, Kernel)
    assert kernel.buffers == ("b", "a")
