"""Both readers find the same gradients, and notice the same moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

from descend.optim.compiler import cache as kernels
from descend.optim.engine.gradient_scan import (
    ABSENT,
    MANY,
    MOVED,
    ODD,
    GradientScanner,
    ScannerCompileJob,
    TensorList,
    check_scanner,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["python", pytest.param("library", marks=needs_compiler)])
def reader(request: pytest.FixtureRequest) -> GradientScanner:
    if request.param == "python":
        return GradientScanner()
    workshop, job = kernels.KernelCompiler(), ScannerCompileJob()
    workshop.order([job])
    workshop.collect([job], wait=True)
    (found,) = workshop.take([job])
    return found


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def parameters() -> list[Tensor]:
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in [(), (3,), (4, 5), (2, 3, 4, 4), (6,)]]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def test_gradients_are_found_where_they_lie(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    assert reader.find(known, TensorList([])) == 0
    assert known.gradients.tolist() == [p.grad.data_ptr() for p in params if p.grad is not None]
    params[1].grad = torch.zeros(3)
    whole = torch.zeros(10, 5)
    params[2].grad = whole[3:7]
    assert reader.find(known, TensorList([])) == 0
    assert known.gradients[1] == params[1].grad.data_ptr()
    assert known.gradients[2] == whole[3].data_ptr()


def test_absent_frozen_and_odd_gradients_are_distinguished(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    params[0].grad = None
    params[1].requires_grad_(False)
    assert reader.find(known, TensorList([])) == ABSENT
    params[2].grad = torch.zeros(5, 4).t()
    assert params[3].grad is not None
    params[3].grad = params[3].grad.to(memory_format=torch.channels_last)
    params[4].grad = torch.zeros(1).expand(6)
    assert reader.find(known, TensorList([])) == ABSENT | ODD
    assert known.gradients.tolist() == [0, 0, -1, -1, -1]


def test_a_gradient_of_a_subclass_is_odd(reader: GradientScanner) -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3).to_sparse()
    assert reader.find(TensorList([p]), TensorList([])) == ODD


def test_moved_weights_are_noticed(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    assert reader.stayed(known)
    params[3].data = params[3].data.clone()
    assert not reader.stayed(known)
    assert reader.find(known, TensorList([])) == MOVED
    swapped = TensorList(params[:2])
    params[0].data, params[1].data = params[1].data, params[0].data
    assert not reader.stayed(swapped)


def test_state_that_moved_is_noticed_beside_the_weights(reader: GradientScanner) -> None:
    known, state = TensorList(parameters()), [torch.zeros(3), torch.zeros(4)[1:], torch.tensor(1.0)]
    beside = TensorList(state)
    assert reader.find(known, beside) == 0
    state[1].data = state[1].data[1:]
    assert reader.find(known, beside) == MOVED


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 37])
def test_many_tensors_are_seen_by_several_threads_as_by_one(
    reader: GradientScanner, count: int, three_threads: None
) -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]
    for i, p in enumerate(params):
        p.grad = None if i % 7 == 0 else torch.zeros(6)[::2] if i % 11 == 0 else torch.ones(3)
    known, beside = TensorList(params), TensorList([torch.zeros(2) for _ in range(2 * count)])
    assert reader.find(known, beside) == ABSENT | ODD
    expected = [0 if p.grad is None else p.grad.data_ptr() if p.grad.is_contiguous() else -1 for p in params]
    assert known.gradients.tolist() == expected
    for moved in (0, count // 2, count - 1):
        for tensors in (params, beside.tensors):
            old = tensors[moved].data
            tensors[moved].data = old.clone()
            assert reader.find(known, beside) == MOVED
            tensors[moved].data = old
    assert reader.find(known, beside) == ABSENT | ODD


def test_swapped_objects_are_noticed(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    other = torch.nn.Parameter(torch.zeros(3))
    params[1].grad = None
    torch.utils.swap_tensors(params[1], other)
    assert not reader.stayed(known)
    assert reader.find(known, TensorList([])) == MOVED


def test_a_list_that_grew_and_shrank_holds_the_same(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    params.extend(parameters() * 10)
    assert not reader.same(params, known)
    del params[len(known.tensors) :]
    assert reader.same(params, known)
    assert reader.same([], TensorList([]))


def test_memory_moved_to_other_processes_is_noticed(reader: GradientScanner) -> None:
    whole = torch.zeros(100)
    part = torch.nn.Parameter(whole[64:80])
    known = TensorList([part])
    whole.share_memory_()
    assert not reader.stayed(known)


def test_only_parameters_with_a_gradient_are_marked_as_written(reader: GradientScanner) -> None:
    params = parameters()
    params[1].grad = None
    params[2].requires_grad_(False)
    known = TensorList(params)
    before = [p._version for p in params]
    reader.find(known, TensorList([]))
    reader.written(known)
    assert [p._version - v for p, v in zip(params, before, strict=True)] == [1, 0, 0, 1, 1]


def test_lists_are_compared_by_identity(reader: GradientScanner) -> None:
    params = parameters()
    known = TensorList(params)
    assert reader.same(params, known)
    assert not reader.same(params[:-1], known)
    assert not reader.same([*params[:-1], torch.nn.Parameter(params[-1].data)], known)
    assert not reader.same([params[1], params[0], *params[2:]], known)
    assert reader.same(tuple(params), known)
    assert not reader.same(tuple(params[1:]), known)


def test_addresses_are_whole_numbers(reader: GradientScanner) -> None:
    known = TensorList(parameters())
    assert known.gradients.dtype == np.int64
    assert reader.stayed(TensorList([]))


def test_a_scanner_that_reads_as_torch_says_passes_its_check(reader: GradientScanner) -> None:
    assert check_scanner(reader) == ""


class OffByOne(GradientScanner):
    def find(self, known: TensorList, beside: TensorList) -> int:
        seen = super().find(known, beside)
        known.gradients[known.gradients > 0] += 8
        return seen


class SeesNoGradient(GradientScanner):
    def find(self, known: TensorList, beside: TensorList) -> int:
        known.gradients[:] = 0
        return 1


class CountsNoWrite(GradientScanner):
    def written(self, known: TensorList) -> None:
        pass


class MissesMoves(GradientScanner):
    def stayed(self, known: TensorList) -> bool:
        return True


class LooksAtLengths(GradientScanner):
    def same(self, held: Any, known: TensorList) -> bool:
        return len(held) == len(known.tensors)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OffByOne, "addresses of gradients"),
        (SeesNoGradient, "presence of gradients"),
        (CountsNoWrite, "versions"),
        (MissesMoves, "addresses of tensors"),
        (LooksAtLengths, "items of a list"),
    ],
)
def test_a_scanner_that_reads_otherwise_is_refused(kind: type[GradientScanner], words: str) -> None:
    assert words in check_scanner(kind())
