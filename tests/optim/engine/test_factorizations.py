"""Factorizations of matrices by several threads; on streams of a GPU they are tested in tests/cuda."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from descend.optim.engine import factorizations
from descend.optim.engine.factorizations import factorized, on_streams, pieces
from descend.optim.engine.lockstep import Lockstep
from descend.optim.engine.recorded import record


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def places(stacks: list[Tensor]) -> list[list[Tensor]]:
    return [[torch.full_like(x, torch.nan) for x in torch.linalg.qr(stack)] for stack in stacks]


def test_large_matrices_are_pieces_and_stacks_of_small_ones_too():
    stacks = drawn((2, 3, 8, 7), (4, 5, 9), (9, 9))
    some = list(pieces(stacks, places(stacks), 6))
    assert [tuple(x.shape) for x, _ in some] == [(8, 7)] * 6 + [(4, 5, 9), (9, 9)]


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_each_gets_what_it_would_get_alone(threads: int) -> None:
    stacks = [x.requires_grad_() for x in drawn((2, 3, 8, 7), (4, 5, 9), (9, 9))]
    made = places(stacks)
    on_streams(torch.linalg.qr, list(pieces(stacks, made, 6)), [None] * threads)
    for x, found in zip(stacks, made, strict=True):
        for value, expected in zip(found, torch.linalg.qr(x), strict=True):
            assert torch.equal(value, expected)
            assert not value.requires_grad


def test_an_error_is_raised_when_no_thread_computes_any_more():
    """Memory of the pieces may be free after it."""
    stacks, over = drawn((6, 8, 8)), threading.Semaphore(0)

    def factorize(x: Tensor) -> Any:
        if x.data_ptr() == stacks[0].data_ptr():
            raise RuntimeError("no convergence")
        time.sleep(0.2)
        over.release()
        return torch.linalg.qr(x)

    with pytest.raises(RuntimeError, match="no convergence"):
        on_streams(factorize, list(pieces(stacks, places(stacks), 6)), [None] * 6)
    assert all(over.acquire(blocking=False) for _ in range(5))


def test_without_a_gpu_a_stack_is_one_call():
    stacks, calls = drawn((3, 8, 8), (2, 7, 9)), []

    def factorize(x: Tensor) -> Any:
        calls.append(x.shape)
        return torch.linalg.qr(x)

    found = factorized(factorize, stacks, [[], []], 6)
    assert calls == [x.shape for x in stacks]
    for x, some in zip(stacks, found, strict=True):
        for value, expected in zip(some, torch.linalg.qr(x), strict=True):
            assert torch.equal(value, expected)


@pytest.mark.parametrize("fails", [False, True])
def test_streams_wait_for_the_present_one_and_it_for_them(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error too: what they were given may be freed and written to."""
    order: list[Any] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            order.append((self.name, other.name))

    def on_streams(factorize: Any, some: Any, streams: Any) -> None:
        order.append("work")
        if fails:
            raise RuntimeError("out of memory")
        for x, places in some:
            for place, value in zip(places, factorize(x), strict=True):
                place.copy_(value)

    monkeypatch.setattr(factorizations, "_has_streams", lambda x: True)
    monkeypatch.setattr(factorizations, "_streams", lambda device: [Stream("one"), Stream("two")])
    monkeypatch.setattr(factorizations, "on_streams", on_streams)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("present"))
    stacks = drawn((2, 8, 8), (3, 7, 9))
    forms = [[(x.shape, x.dtype, x.stride()) for x in torch.linalg.qr(stack)] for stack in stacks]
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext():
        for some, stack in zip(factorized(torch.linalg.qr, stacks, forms, 6), stacks, strict=True):
            for value, expected in zip(some, torch.linalg.qr(stack), strict=True):
                assert value.stride() == expected.stride()
                torch.testing.assert_close(value, expected)
    before, after = [("one", "present"), ("two", "present")], [("present", "one"), ("present", "two")]
    assert order == [*before, "work", *after]


def test_a_single_matrix_stays_on_the_present_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factorizations, "_has_streams", lambda x: True)
    monkeypatch.setattr(factorizations, "on_streams", pytest.fail)
    stacks = drawn((1, 8, 8))
    (found,) = factorized(torch.linalg.qr, stacks, [[]], 6)
    assert torch.equal(found[0], torch.linalg.qr(stacks[0])[0])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (lambda x: torch.linalg.qr(x)[0], 1),
        (lambda x: torch.linalg.eigh(x @ x.mT)[1], 1),
        (lambda x: torch.linalg.qr(torch.linalg.qr(x)[0] + x, mode="complete")[1], 2),
        (lambda x: (x @ x.mT).sort()[0], 0),
    ],
    ids=["qr", "eigh", "two with options", "another"],
)
def test_recordings_hand_over_the_stacks_of_all_shapes(text: Any, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With forms of what is made: shapes and strides that the text's later views rely on."""
    given, seen = drawn((3, 8, 8), (2, 7, 7)), []

    def spied(factorize: Any, stacks: Any, forms: Any, least_side: int) -> Any:
        made = factorized(factorize, stacks, forms, least_side)
        assert [[(*x.shape,) for x in some] for some in made] == [[n for n, _, _ in some] for some in forms]
        assert [[x.stride() for x in some] for some in made] == [[s for _, _, s in some] for some in forms]
        seen.append([tuple(x.shape) for x in stacks])
        return made

    monkeypatch.setattr("descend.optim.engine.lockstep.factorized", spied)
    recordings = []
    for x in given:
        _, made = record(lambda x=x: {"p": torch.vmap(text)(x)}, {}, {"p": x})
        assert made is not None
        recordings.append(made)
    found = Lockstep(recordings)([[], []], [{"p": x} for x in given])
    assert seen == [[(3, 8, 8), (2, 7, 7)]] * calls
    for x, new in zip(given, found, strict=True):
        assert torch.equal(new["p"], torch.vmap(text)(x))
