"""Products and factorizations of matrices, alone and as stacks; on streams of a GPU they are tested in tests/cuda."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from descend.optim.rules import matrices
from descend.optim.rules.matrices import as_matrices, factorize_each, on_streams, product, sides


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (1, 1)), ((5,), (1, 5)), ((4, 3), (4, 3)), ((2, 3, 4, 5), (2, 60)), ((0,), (1, 0)), ((0, 3), (0, 3))],
)
def test_a_tensor_is_its_first_dimension_against_all_others(shape: Any, expected: tuple[int, int]) -> None:
    assert sides(torch.Size(shape)) == expected
    assert as_matrices(torch.ones(shape), torch.Size(shape)).shape == expected
    assert as_matrices(torch.ones(6, *shape), torch.Size(shape)).shape == (6, *expected)


@pytest.mark.parametrize("fast", [None, torch.mm])
@pytest.mark.parametrize("count", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_matrices_and_of_stacks(
    fast: Any, count: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float64, by torch's products and by a faster one of float32, which is for large matrices alone."""
    monkeypatch.setattr(matrices, "float32_product", lambda: fast)
    for limit in (1, 10**9):
        monkeypatch.setattr(matrices, "LARGE_PRODUCT", limit)
        a, b, s = drawn(*count, 5, 7), drawn(*count, 7, 4), drawn(*count, 5, 4)
        left, right, start = (x.to(dtype) for x in (a, b.mT.contiguous().mT, s))
        before = start.clone()
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(product(left, right).double(), a @ b, **close)
        found = product(left, right, start, beta=0.5, alpha=-2.0)
        torch.testing.assert_close(found.double(), 0.5 * s - 2.0 * (a @ b), **close)
        assert found.dtype is dtype
        assert torch.equal(start, before)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_each_gets_what_it_would_get_alone(threads: int) -> None:
    x = drawn(5, 8, 7).requires_grad_()
    made = [torch.full_like(value, torch.nan) for value in torch.linalg.qr(x)]
    on_streams(torch.linalg.qr, x, made, [None] * threads)
    for value, expected in zip(made, torch.linalg.qr(x), strict=True):
        assert torch.equal(value, expected)
        assert not value.requires_grad


def test_an_error_is_raised_when_no_thread_computes_any_more() -> None:
    """Memory of the matrices may be free after it."""
    x, over = drawn(6, 8, 8), threading.Semaphore(0)

    def factorize(one: Tensor) -> Any:
        if one.data_ptr() == x.data_ptr():
            raise RuntimeError("no convergence")
        time.sleep(0.2)
        over.release()
        return torch.linalg.qr(one)

    with pytest.raises(RuntimeError, match="no convergence"):
        on_streams(factorize, x, list(torch.linalg.qr(x)), [None] * 6)
    assert all(over.acquire(blocking=False) for _ in range(5))


@pytest.mark.parametrize("fails", [False, True])
def test_streams_wait_for_the_present_one_and_it_for_them(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error too: what they were given may be freed and written to."""
    order: list[Any] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            order.append((self.name, other.name))

    def work(factorize: Any, x: Any, made: Any, streams: Any) -> None:
        order.append("work")
        if fails:
            raise RuntimeError("out of memory")
        on_streams(factorize, x, made, [None for _ in streams])

    monkeypatch.setattr(matrices, "_has_streams", lambda x: True)
    monkeypatch.setattr(matrices, "_streams", lambda device: [Stream("one"), Stream("two")])
    monkeypatch.setattr(matrices, "on_streams", work)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("present"))
    x = drawn(3, 99, 99)
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext():
        for value, expected in zip(factorize_each(torch.linalg.qr, x), torch.linalg.qr(x), strict=True):
            torch.testing.assert_close(value, expected)
    before, after = [("one", "present"), ("two", "present")], [("present", "one"), ("present", "two")]
    assert order == [*before, "work", *after]


@pytest.mark.parametrize("shape", [(99, 99), (1, 99, 99), (4, 30, 30)], ids=str)
@pytest.mark.parametrize("factorize", [torch.linalg.qr, torch.linalg.eigh], ids=["qr", "eigh"])
def test_single_and_small_matrices_are_one_call(
    shape: tuple[int, ...], factorize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "_has_streams", lambda x: True)
    monkeypatch.setattr(matrices, "on_streams", pytest.fail)
    x = drawn(*shape)
    for value, expected in zip(factorize_each(factorize, x), factorize(x), strict=True):
        assert torch.equal(value, expected)
