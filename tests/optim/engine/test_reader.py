"""Both readers find the same gradients, and notice the same moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from descend.optim.engine import kernels
from descend.optim.engine.reader import ABSENT, MOVED, ODD, Known, Reader, ReaderJob

needs_compiler = pytest.mark.skipif(kernels.compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=["python", pytest.param("library", marks=needs_compiler)])
def reader(request: pytest.FixtureRequest) -> Reader:
    if request.param == "python":
        return Reader()
    workshop, job = kernels.Workshop(), ReaderJob()
    workshop.order([job])
    workshop.collect([job], wait=True)
    (found,) = workshop.take([job])
    return found


def parameters() -> list[Tensor]:
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in [(), (3,), (4, 5), (2, 3, 4, 4), (6,)]]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def test_gradients_are_found_where_they_lie(reader: Reader) -> None:
    params = parameters()
    known = Known(params)
    assert reader.look(known) == 0
    assert known.gradients.tolist() == [p.grad.data_ptr() for p in params if p.grad is not None]
    params[1].grad = torch.zeros(3)
    whole = torch.zeros(10, 5)
    params[2].grad = whole[3:7]
    assert reader.look(known) == 0
    assert known.gradients[1] == params[1].grad.data_ptr()
    assert known.gradients[2] == whole[3].data_ptr()


def test_absent_frozen_and_odd_gradients_are_told_apart(reader: Reader) -> None:
    params = parameters()
    known = Known(params)
    params[0].grad = None
    params[1].requires_grad_(False)
    assert reader.look(known) == ABSENT
    params[2].grad = torch.zeros(5, 4).t()
    assert params[3].grad is not None
    params[3].grad = params[3].grad.to(memory_format=torch.channels_last)
    params[4].grad = torch.zeros(1).expand(6)
    assert reader.look(known) == ABSENT | ODD
    assert known.gradients.tolist() == [0, 0, -1, -1, -1]


def test_a_gradient_of_a_subclass_is_odd(reader: Reader) -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3).to_sparse()
    assert reader.look(Known([p])) == ODD


def test_moved_weights_are_noticed(reader: Reader) -> None:
    params = parameters()
    known = Known(params)
    assert reader.stayed(known)
    params[3].data = params[3].data.clone()
    assert not reader.stayed(known)
    assert reader.look(known) == MOVED
    swapped = Known(params[:2])
    params[0].data, params[1].data = params[1].data, params[0].data
    assert not reader.stayed(swapped)


def test_memory_moved_to_other_processes_is_noticed(reader: Reader) -> None:
    whole = torch.zeros(100)
    part = torch.nn.Parameter(whole[64:80])
    known = Known([part])
    whole.share_memory_()
    assert not reader.stayed(known)


def test_only_those_with_a_gradient_are_told_to_be_written(reader: Reader) -> None:
    params = parameters()
    params[1].grad = None
    params[2].requires_grad_(False)
    known = Known(params)
    before = [p._version for p in params]
    reader.look(known)
    reader.written(known)
    assert [p._version - v for p, v in zip(params, before, strict=True)] == [1, 0, 0, 1, 1]


def test_lists_are_compared_by_identity(reader: Reader) -> None:
    params = parameters()
    known = Known(params)
    assert reader.same(params, known)
    assert not reader.same(params[:-1], known)
    assert not reader.same([*params[:-1], torch.nn.Parameter(params[-1].data)], known)
    assert not reader.same([params[1], params[0], *params[2:]], known)
    assert reader.same(tuple(params), known)
    assert not reader.same(tuple(params[1:]), known)


def test_addresses_are_whole_numbers(reader: Reader) -> None:
    known = Known(parameters())
    assert known.gradients.dtype == np.int64
    assert reader.stayed(Known([]))
