"""The interpreter computes what torch computes, in registers and in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import descend.optim
from descend.optim.compiler.interpreter import Interpreter, interpreters, together
from descend.optim.compiler.partition import numbers, partition
from descend.optim.compiler.trace import trace
from descend.optim.engine.settings import GroupSettings

ADAM = GroupSettings(descend.optim.rules.Adam(beta1=0.5, beta2=0.75, eps=0.0), 0.1, 0.0, "coupled", 1.0, None, True)


def test_a_step_of_adam_is_that_of_the_paper():
    """m = g / 2, v = g² / 4; both corrected at t = 1 give g and g², so the step is lr times the sign of g."""
    (kernel,) = partition(trace(ADAM, False))
    text = kernel.trace
    known: dict[int, Any] = {}
    given = {"t": 1.0, "lr": 0.1, "decay": 0.0, "scaled": 1.0}
    for at, op in enumerate(text.ops):
        if op.kind == "number" and op.name == "input":
            known[at] = given[str(op.args[0])]
        if op.name == "literal":
            known[at] = text.literals[op.args[0]]
    numbers(text, known, 0)
    buffers = {
        "g": torch.tensor([[2.0, -3.0]], dtype=torch.float64),
        "p": torch.tensor([[1.0, 1.0]], dtype=torch.float64),
        "s.m": torch.zeros(1, 2, dtype=torch.float64),
        "s.v": torch.zeros(1, 2, dtype=torch.float64),
    }
    machine = Interpreter(kernel, torch.float64, None, torch.device("cpu"), 1, 2)
    table = {at: machine.held(torch.tensor(known[at], dtype=torch.float64)) for at in kernel.numbers}
    machine.run({name: machine.held(x) for name, x in buffers.items()}, table, 1, None)
    torch.testing.assert_close(buffers["p"], torch.tensor([[0.9, 1.1]], dtype=torch.float64))
    torch.testing.assert_close(buffers["s.m"], torch.tensor([[1.0, -1.5]], dtype=torch.float64))
    torch.testing.assert_close(buffers["s.v"], torch.tensor([[1.0, 2.25]], dtype=torch.float64))
    assert buffers["g"].tolist() == [[2.0, -3.0]]  # only read


def test_each_thread_has_interpreters_of_its_own_and_they_are_kept():
    kernels = partition(trace(ADAM, False))
    made: list[list[Interpreter]] = []
    like = torch.zeros(4, 64)
    first = interpreters(made, kernels, like, None, 4, 2)
    again = interpreters(made, kernels, like, None, 4, 3)
    assert len(first) == len(again) == 3
    assert again is made
    assert len({id(machine) for machines in made for machine in machines}) == 3 * len(kernels)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_done_once_whatever_the_threads(threads: int):
    done: list[int] = []
    together(lambda thread, item: done.append(item), range(20), threads)
    assert sorted(done) == list(range(20))


def test_an_error_in_a_thread_reaches_the_caller():
    def fail(thread: int, item: int) -> None:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item"):
        together(fail, range(5), 3)
